"""The wait between "started" and "serving", made visible.

Owns: how readiness is judged and what is shown meanwhile: a spinner on a terminal, a line now and then elsewhere.
Never: starts or stops a part.
"""

import time
from collections.abc import Callable, Collection
from contextlib import nullcontext

from rich.text import Text

from infra.cli import console
from infra.cli.gateway import Gateway, Status, Worker
from infra.cli.signals import Signals
from infra.errors import CorralError, StartError

POLL_S = 0.4
LINE_EVERY_S = 10.0  # off a terminal


def wait_until_ready(
    gateway: Gateway, names: Collection[str], check: Callable[[], None], signals: Signals, limit_s: float
) -> Status:
    """The status once all workers of `names` and the API are ready.

    Raises StartError after `limit_s` seconds, whatever `check` raises, and StopAskedError.
    """
    began = time.monotonic()
    next_line = began + LINE_EVERY_S
    live = console.out.is_terminal
    with console.out.status("Starting") if live else nullcontext() as spinner:
        while True:
            status = _status(gateway)
            if status is not None and all_ready(status, names) and gateway.ready():
                return status
            check()
            now = time.monotonic()
            if now - began > limit_s:
                raise StartError("start", f"not ready after {limit_s:.0f} s: {describe(status, names)}")
            text = f"{describe(status, names)} ({now - began:.0f} s)"
            if spinner is not None:
                spinner.update(Text(text))
            elif now >= next_line:
                console.say(text)
                next_line = now + LINE_EVERY_S
            signals.wait(POLL_S)


def all_ready(status: Status, names: Collection[str]) -> bool:
    """Every worker of `names` says it is ready."""
    return set(names) <= {worker.name for worker in status.workers if worker.state == "ready"}


def describe(status: Status | None, names: Collection[str]) -> str:
    """What each of these workers is doing, as one short line."""
    if status is None:
        return "Waiting for the API"
    known = {worker.name: worker for worker in status.workers}
    return ", ".join(_describe(name, known.get(name)) for name in names)


def _describe(name: str, worker: Worker | None) -> str:
    if worker is None:
        return f"{name}: starting"
    what = "loading the model" if worker.state == "loading" else worker.state
    return f"{name}: {what}{f' ({worker.reason})' if worker.reason else ''}"


def _status(gateway: Gateway) -> Status | None:
    try:
        return gateway.status()
    except CorralError:
        return None
