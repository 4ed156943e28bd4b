"""`corral api`: one API process in the foreground, or several behind one port.

Owns: which processes the API is, for `corral up` too, and the life of several that stand alone.
Never: spreads connections over them: each listens on the port itself (SO_REUSEPORT), and the kernel does.
"""

import math
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from infra.cli import checks, console, gateway, options, parts
from infra.cli.signals import Signals, StopAskedError
from infra.cli.supervise import House, Part, Stage
from infra.config import Settings
from infra.exit_codes import INTERRUPTED
from infra.observability import metrics
from infra.redis_client import checked

STOP_MARGIN_S = 5.0  # after its last answer a process gives back what it holds
COUNTERS_BYTES = 2**22  # of a file; some 20,000 figures

Port = Annotated[int | None, typer.Option("--port", metavar="PORT", min=0, max=65535, help="Port.")]
Workers = Annotated[
    int | None,
    typer.Option("--workers", metavar="N", min=1, max=64, help="API processes behind the one port."),
]


def api(host: parts.Host = None, port: Port = None, workers: Workers = None) -> None:
    """Run the API alone, in the foreground. Needs CORRAL_REDIS_URL."""
    settings = options.load_with(host=host, port=port, api_workers=workers).settings
    checked(settings.redis_url)
    checks.doors(settings, flower=False)
    checks.warm(settings)
    number = checks.port(settings.host, settings.port, "API", "give another --port")
    settings = settings.model_copy(update={"port": number})
    if settings.api_workers == 1:
        parts.become(parts.API, parts.environment(settings))
    checks.data_dir(settings.data_dir)
    raise typer.Exit(_serve(settings))


def processes(settings: Settings) -> list[Part]:
    """The API's processes, each with a name and a log of its own."""
    several = settings.api_workers > 1
    names = [f"api-{number}" for number in range(1, settings.api_workers + 1)] if several else [settings.api_name]
    counters = _shared_counters(settings.data_dir / "metrics", names) if several else {}
    return [
        Part(
            f"API {name.removeprefix('api-')}" if several else "API",
            Stage.API,
            parts.API,
            parts.environment(settings, api_name=name) | counters,
            settings.data_dir / "logs" / f"{name}.log",
        )
        for name in names
    ]


def _shared_counters(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Whichever process answers /metrics tells the counters of all: they are in files, as prometheus-client keeps them.
    A new start begins at zero.

    A file that grows on a full disk ends the process that has mapped it (SIGBUS), so its room is taken now.
    """
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            for kind in metrics.KINDS:
                (folder / f"{kind}_{name}.db").write_bytes(bytes(COUNTERS_BYTES))
    except OSError as error:
        console.warn(f"{folder}: {error.strerror}; each API process tells its own counters only")
        shutil.rmtree(folder, ignore_errors=True)
        return {}
    return {metrics.FOLDER: str(folder)}


def _serve(settings: Settings) -> int:
    """Start all, look after them until a signal comes, and stop them; the exit code."""
    house = House(console.prose)
    with Signals(house.kill) as signals:
        try:
            for part in processes(settings):
                house.start(part)
            logs = settings.data_dir / "logs"
            console.say(f"API: {settings.api_workers} processes on {gateway.address(settings)}, logs in {logs}")
            while True:
                signals.wait(house.tend(time.monotonic()))
        except StopAskedError:
            console.prose("Stopping.")
        finally:
            try:
                house.stop(lambda _stage: math.ceil(settings.drain_s) + STOP_MARGIN_S)
            finally:
                house.kill()
    return INTERRUPTED if signals.forced else 0
