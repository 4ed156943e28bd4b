"""What every part of the house does around its own work.

Owns: settings, logging and the exit code of the API, a worker and Flower.
Never: what a part serves.
"""

import sys
from collections.abc import Callable

from infra import config
from infra.config import Settings
from infra.errors import BrokerDown, CorralError, StartError
from infra.observability import logs
from infra.redis_client import redacted


def _named(settings: Settings, serve: Callable[[Settings], None]) -> None:
    """Serve; a broker that does not answer is named, without its password."""
    try:
        serve(settings)
    except BrokerDown as error:
        raise StartError("broker", f"{redacted(settings.redis_url)}: {error.message}; see CORRAL_REDIS_URL") from error


def run(name: str, serve: Callable[[Settings], None]) -> int:
    """Serve until a signal comes. Exit code 0 then, 1 when the part could not start: the last line of stderr says why.

    `name` stands in every line of its log.
    """
    try:
        settings = config.load().settings
        logs.configure(settings, name)
        _named(settings, serve)
    except CorralError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
