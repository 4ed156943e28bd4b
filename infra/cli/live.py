"""A picture that a terminal draws again each second.

Owns: the second, and what stands there while the API is away.
Never: knows what the picture shows.
"""

import time
from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from infra.cli import console
from infra.errors import Refused

EVERY_S = 1.0


def follow(look: Callable[[], RenderableType], every_s: float = EVERY_S) -> None:
    """Draw what `look` brings every `every_s`, until Ctrl-C. Raises the first look's CorralError; a later look that is
    Refused leaves the last picture below its words, for an API that dies is started again."""
    try:
        picture = look()
        with Live(picture, console=console.out, auto_refresh=False, screen=True) as live:
            while True:
                time.sleep(every_s)
                try:
                    picture = look()
                except Refused as error:
                    live.update(Group(Text(f"{error}. This is old:", style="red"), picture), refresh=True)
                else:
                    live.update(picture, refresh=True)
    except KeyboardInterrupt:
        return
