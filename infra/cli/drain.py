"""`corral drain` and `corral undrain`: take a worker out of service without losing an answer, and back.

Owns: how an operator follows a drain, when it counts as over, and what is said of the last worker of a model.
Never: empties a worker; it does that itself.
"""

import time
from typing import Annotated

import typer

from infra.cli import console, gateway, options
from infra.cli.gateway import Gateway, Status, Worker
from infra.errors import ConfigError, CorralError
from infra.exit_codes import INTERRUPTED

POLL_S = 0.3
TAKE_BACK_S = 10.0  # a worker hears of it in a second; its gateway in another
SAVE_MARGIN_S = 30.0  # on top of the limit: the cut answers end, caches are saved, and the worker says so
LEAVES = ("draining", "drained")

Name = Annotated[str, typer.Argument(metavar="WORKER", help="Its name, as `corral status` shows it.")]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0,
        max=86400,
        help="How long its answers may go on there; longer ones go on at another worker. Else the API's drain_s.",
    ),
]


def drain(name: Name, timeout: Timeout = None, url: options.Url = None, key: options.Key = None) -> None:
    """Take a worker out of service and wait until it is empty.

    It takes no new work, its queued requests go to other workers, its answers end or go on elsewhere, and its caches
    are saved. Stop it then, or take it back with `corral undrain`.
    """
    settings = options.load_with().settings
    limit_s = settings.drain_s if timeout is None else timeout
    with _client(name, url, key) as client:
        client.drain(name, timeout)
        try:
            _follow(client, name, limit_s + SAVE_MARGIN_S)
        except KeyboardInterrupt:
            console.say(f"{name} goes on draining; `corral undrain {name}` takes it back")
            raise typer.Exit(INTERRUPTED) from None


def undrain(name: Name, url: options.Url = None, key: options.Key = None) -> None:
    """Let a drained worker take work again."""
    with _client(name, url, key) as client:
        client.undrain(name)
        console.say(_taken_back(client, name, time.monotonic() + TAKE_BACK_S))


def _taken_back(client: Gateway, name: str, until_s: float) -> str:
    """What became of a worker that was taken back, once the gateway has heard of it: who drains another one next counts
    on this one."""
    while True:
        worker = next((one for one in client.status().workers if one.name == name), None)
        if worker is None:
            return f"{name} is not there; it will take work when it is"
        if worker.state not in LEAVES:
            return f"{name} takes work again"
        if time.monotonic() > until_s:
            return f"{name} was told to take work again; it is still {worker.state}"
        time.sleep(POLL_S)


def _client(name: str, url: str | None, key: str | None) -> Gateway:
    if not name.strip():
        raise ConfigError("WORKER is empty; give a worker's name")
    settings = options.load_with().settings
    return Gateway(url or gateway.address(settings), gateway.key(settings, key))


def _follow(client: Gateway, name: str, limit_s: float) -> None:
    """Tell how far the drain is until it is over. Raises CorralError when it is not, or was taken back."""
    ends_s = time.monotonic() + limit_s
    told, began = "", False
    while True:
        status = client.status()
        worker = next((one for one in status.workers if one.name == name), None)
        if worker is None:
            console.say(f"{name} has left; nothing runs there")
            return
        if began and worker.state not in LEAVES:
            raise CorralError(f"{name} was taken back while it was drained; it is {worker.state}")
        if not began and worker.state in LEAVES:
            began = True
            _warn_of_last(status, worker)
        if _is_over(status, worker):
            console.say(_farewell(worker))
            return
        if (words := _progress(worker)) != told:
            told = words
            console.say(f"{name}: {words}")
        if time.monotonic() > ends_s:
            raise CorralError(f"{name} is not empty after {limit_s:.0f} s: {words}; it goes on draining")
        time.sleep(POLL_S)


def _others(status: Status, worker: Worker) -> list[Worker]:
    """Who can take over what waits at `worker`."""
    same = [one for one in status.workers if one.name != worker.name and one.model == worker.model]
    return [one for one in same if one.state not in LEAVES]


def _is_over(status: Status, worker: Worker) -> bool:
    """Nothing runs there, and nothing waits that another worker could take."""
    return worker.state == "drained" and not (sum(worker.queued) and _others(status, worker))


def _warn_of_last(status: Status, worker: Worker) -> None:
    if not _others(status, worker):
        console.warn(
            f"no other worker serves {worker.model or 'its model'}: new requests are refused, and what waits or is cut "
            f"waits for another worker, or for `corral undrain {worker.name}`"
        )


def _progress(worker: Worker) -> str:
    if worker.state not in LEAVES:
        return "is told"
    parts = [_count(worker.running, "answer") + " running"] if worker.running else []
    parts += [_count(sum(worker.queued), "request") + " waiting"] if sum(worker.queued) else []
    return ", ".join(parts) or "saving caches"


def _farewell(worker: Worker) -> str:
    waiting = sum(worker.queued)
    left = f"; {_count(waiting, 'request')} waiting for another worker" if waiting else ""
    return f"{worker.name} is drained{left}. Stop it, or take it back with `corral undrain {worker.name}`"


def _count(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{number} {what}s"
