"""What every part of the house does around its own work.

Owns: settings, logging and the exit code of the API, a worker and Flower.
Never: what a part serves.
"""

import sys
from collections.abc import Callable

from infra import config
from infra.config import Settings
from infra.errors import CorralError
from infra.observability import logs


def run(name: str, serve: Callable[[Settings], None]) -> int:
    """Serve until a signal comes. Exit code 0 then, 1 when the part could not start: the last line of stderr says why.

    `name` stands in every line of its log.
    """
    try:
        settings = config.load().settings
        logs.configure(settings, name)
        serve(settings)
    except CorralError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
