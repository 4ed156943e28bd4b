"""`corral up`: everything on this machine, in one command.

Owns: the order of the start, and the end of everything it started.
Never: imports a part; it starts them by their command lines.
"""

import secrets
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from infra import machine, sizing
from infra.cli import api, broker, checks, console, engine, gateway, loading, lock, options, parts, plan, sizes, welcome
from infra.cli.plan import WorkerPlan
from infra.cli.signals import Signals, StopAskedError
from infra.cli.supervise import House, Part, Stage
from infra.config import Loaded, Settings
from infra.errors import CorralError, StartError
from infra.exit_codes import INTERRUPTED
from infra.network import free_port
from infra.observability import traces

START_MARGIN_S = 30.0  # on top of the engine's own limit
STOP_MARGIN_S = 25.0  # after its last answer a worker ends its threads and saves what its slots hold
QUICK_STOP_S = 5.0  # nothing is running that could be lost

Workers = Annotated[
    str, typer.Option("--workers", metavar="N|auto", help="Workers; auto: one a GPU, or one on the CPU.")
]
Host = Annotated[
    str | None, typer.Option("--host", metavar="ADDRESS", help="Address of the API; off loopback it needs keys.")
]
Port = Annotated[
    int | None,
    typer.Option("--port", metavar="PORT", min=0, max=65535, help="Port of the API; 0 for any free one."),
]
ApiWorkers = Annotated[
    int | None,
    typer.Option("--api-workers", metavar="N", min=1, max=64, help="API processes behind the one port."),
]
FlowerPort = Annotated[
    int | None,
    typer.Option("--flower-port", metavar="PORT", min=0, max=65535, help="Port of Flower; 0 for any free one."),
]
NoFlower = Annotated[bool, typer.Option("--no-flower", help="Do without Flower.")]


def up(
    model: options.Model = None,
    workers: Workers = "auto",
    slots: options.Slots = None,
    context: options.Context = None,
    threads: options.Threads = None,
    gpu: options.Gpu = None,
    host: Host = None,
    port: Port = None,
    api_workers: ApiWorkers = None,
    flower_port: FlowerPort = None,
    no_flower: NoFlower = False,
    data_dir: options.DataDir = None,
    engine_args: options.EngineArgs = None,
) -> None:
    """Start broker, workers, API and Flower on this machine.

    Options override CORRAL_* variables, and those corral.toml. With CORRAL_REDIS_URL set, that broker is used.
    """
    loaded = options.load_with(
        model=model,
        slots=slots,
        context_tokens=context,
        threads=threads,
        gpu=gpu,
        host=host,
        port=port,
        api_workers=api_workers,
        flower_port=flower_port,
        data_dir=data_dir,
        engine_args=engine_args,
    )
    staff = plan.workers(loaded, workers, machine.cards() if loaded.settings.gpu != "none" else (), machine.cores())
    settings = _checked(loaded, flower=not no_flower)
    raise typer.Exit(_run(settings, _sized(settings, staff), flower=not no_flower))


def _checked(loaded: Loaded, *, flower: bool) -> Settings:
    """The settings with real ports and model. Raises StartError or ConfigError before anything is started."""
    settings = loaded.settings
    checks.doors(settings, flower)
    checks.data_dir(settings.data_dir)
    checks.warm(settings)
    traces.check(settings)
    changes: dict[str, object] = {"model": checks.model(settings.model)}
    changes["port"] = checks.port(settings.host, settings.port, "API", "give another --port (0: any free one)")
    if flower:
        remedy = "give another --flower-port, or --no-flower"
        changes["flower_port"] = checks.port(settings.flower_host, settings.flower_port, "Flower", remedy)
    _warn_of_cards(settings)
    _warn_of_store(settings)
    return settings.model_copy(update=changes)


def _warn_of_store(settings: Settings) -> None:
    """One line when nothing can be saved; it is no reason not to start."""
    try:
        checks.store(settings)
    except StartError as error:
        console.warn(error.message)


def _sized(settings: Settings, staff: tuple[WorkerPlan, ...]) -> tuple[WorkerPlan, ...]:
    """The workers with numbers in place of `auto`, shown. Raises StartError or ConfigError when there are none."""
    if not sizing.is_auto(settings):
        return staff
    plans = sizes.of_workers(settings, staff)
    sizes.show(plans)
    return tuple(replace(worker, size=plans[worker.name]) for worker in staff)


def _warn_of_cards(settings: Settings) -> None:
    """Said before the model loads, which may take minutes on the CPU, and again where it is not scrolled away."""
    for warning in (engine.missing_cards(settings), engine.idle_card(settings, engine.find(settings))):
        if warning:
            console.warn(warning)


def _run(settings: Settings, staff: tuple[WorkerPlan, ...], *, flower: bool) -> int:
    """Start, serve and stop; the exit code. Raises what made it end before its time, with nothing left running."""
    house = House(console.prose)
    grace_s = QUICK_STOP_S
    lock.take(settings.data_dir / "up.lock", "data folder", "stop that `corral up`, or give another --data-dir")
    with Signals(house.kill) as signals:
        try:
            settings = _start(house, settings, staff, signals, flower=flower)
            grace_s = settings.drain_s + STOP_MARGIN_S
            while True:
                signals.wait(house.tend(time.monotonic()))
        except StopAskedError:
            console.prose(_farewell(grace_s))
        except CorralError:
            grace_s = QUICK_STOP_S
            raise
        finally:
            try:
                house.stop(lambda stage: grace_s if stage in (Stage.API, Stage.WORKERS) else QUICK_STOP_S)
            finally:
                house.kill()
    console.say("Stopped.")
    return INTERRUPTED if signals.forced else 0


def _farewell(grace_s: float) -> str:
    if grace_s <= QUICK_STOP_S:
        return "Stopping."
    return (
        f"Stopping: running answers get up to {grace_s - STOP_MARGIN_S:.0f} s to end, then caches are saved. "
        "Ctrl-C again stops at once."
    )


def _start(
    house: House, settings: Settings, staff: tuple[WorkerPlan, ...], signals: Signals, *, flower: bool
) -> Settings:
    """Start the parts in order and return once all serve; the settings then hold the broker's address."""
    console.prose(f"Starting Corral: model {settings.model}, {_count(staff)}, data in {settings.data_dir}")
    if not settings.redis_url:
        settings = settings.model_copy(update={"redis_url": _start_broker(house, settings, signals)})
    for worker in staff:
        signals.check()
        house.start(_worker(settings, worker))
    for process in api.processes(settings):
        house.start(process)
    if flower:
        house.start(_part("Flower", Stage.FLOWER, parts.FLOWER, settings, settings))
    limit_s = settings.engine_start_timeout_s + START_MARGIN_S
    with gateway.Gateway(gateway.address(settings), gateway.key(settings), timeout_s=2.0) as client:
        status = loading.wait_until_ready(client, [worker.name for worker in staff], house.check, signals, limit_s)
    welcome.tell(settings, status, options.load_with(), flower=flower)
    _warn_of_cards(settings)
    return settings


def _start_broker(house: House, settings: Settings, signals: Signals) -> str:
    """Start a broker of our own on loopback; its address, with a password made for this run."""
    folder = settings.data_dir / "broker"
    lock.take(folder / "lock", "broker", "stop that `corral broker`, or point CORRAL_REDIS_URL at it")
    port, password = free_port(), secrets.token_urlsafe(24)
    command = broker.command(folder, "127.0.0.1", port, password)
    log = _log(settings, "broker")
    # Started again it reads its data back from disk.
    part = Part("broker", Stage.BROKER, command, broker.MEMORY | parts.environment(settings), log)
    house.start(part)
    url = broker.url("127.0.0.1", port, password)
    broker.wait_until_answers(url, part.check, signals.wait)
    broker.clear(url)
    broker.note(folder, url)
    return url


def _worker(settings: Settings, worker: WorkerPlan) -> Part:
    own = plan.worker_settings(settings, worker)
    return _part(f"worker {worker.name}", Stage.WORKERS, parts.WORKER, settings, own)


def _part(name: str, stage: Stage, command: tuple[str, ...], house: Settings, own: Settings) -> Part:
    log = _log(house, name.lower().replace(" ", "-"))
    return Part(name, stage, command, parts.environment(own), log)


def _log(settings: Settings, name: str) -> Path:
    return settings.data_dir / "logs" / f"{name}.log"


def _count(staff: tuple[WorkerPlan, ...]) -> str:
    return "1 worker" if len(staff) == 1 else f"{len(staff)} workers"
