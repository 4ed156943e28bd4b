"""Command lines of the parts, and the commands that run one part alone in the foreground.

Owns: which program a part is, the environment it gets, `corral worker`, `broker` and `flower`.
Never: imports a part, watches one.

For several machines: one broker, one API, any number of workers, all pointed at one CORRAL_REDIS_URL.
"""

import os
import re
import socket
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Never

import typer

from infra import config
from infra.cli import broker as valkey
from infra.cli import checks, console, lock, options
from infra.config import PREFIX, Settings
from infra.errors import ConfigError
from infra.network import is_loopback
from infra.redis_client import checked

API = (sys.executable, "-m", "api.app")
WORKER = (sys.executable, "-m", "workers.app")
FLOWER = (sys.executable, "-m", "infra.flower_app")

Host = Annotated[str | None, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")]


def environment(settings: Settings, **changes: Any) -> dict[str, str]:
    """What a part's process gets: this process's own environment and exactly these settings."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    # Safe path: `python -m api.app` in a folder that has an `api` of its own must not run that.
    return own | {"PYTHONSAFEPATH": "1"} | config.environment(settings, **changes)


def machine_name() -> str:
    """This machine's name in the letters a worker's name may have."""
    return re.sub(r"[^A-Za-z0-9-]+", "-", socket.gethostname().partition(".")[0]).strip("-")[:48] or "worker"


def worker(
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Name in the cluster; else this machine's. Keep it over restarts."),
    ] = None,
    gpu: options.Gpu = None,
    model: options.Model = None,
    slots: options.Slots = None,
    context: options.Context = None,
    threads: options.Threads = None,
    engine_args: options.EngineArgs = None,
    data_dir: options.DataDir = None,
) -> None:
    """Run one worker with its engine, in the foreground. Needs CORRAL_REDIS_URL.

    A worker started beside a running cluster takes new conversations within seconds.
    """
    loaded = options.load_with(
        worker_name=name,
        gpu=gpu,
        model=model,
        slots=slots,
        context_tokens=context,
        threads=threads,
        engine_args=engine_args,
        data_dir=data_dir,
    )
    settings = loaded.settings
    checked(settings.redis_url)
    checks.data_dir(settings.data_dir)
    named = loaded.sources["worker_name"] != "default"
    own_name = settings.worker_name if named else _default_name(settings.gpu)
    become(WORKER, environment(settings, worker_name=own_name, model=checks.model(settings.model)))


def _default_name(gpu: str) -> str:
    return f"{machine_name()}-gpu{gpu.replace(',', '-')}" if gpu and gpu != "none" else machine_name()


def flower(
    host: Host = None,
    port: Annotated[int | None, typer.Option("--port", metavar="PORT", min=0, max=65535, help="Port.")] = None,
) -> None:
    """Run Flower alone, in the foreground. Needs CORRAL_REDIS_URL."""
    settings = options.load_with(flower_host=host, flower_port=port).settings
    checked(settings.redis_url)
    checks.doors(settings.model_copy(update={"host": "127.0.0.1"}))
    number = checks.port(settings.flower_host, settings.flower_port, "Flower", "give another --port")
    console.say(f"Flower listens on http://{settings.flower_host}:{number}")
    become(FLOWER, environment(settings, flower_port=number))


def broker(
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", min=0, max=65535, help="Port; 0 for any free one.")
    ] = 6379,
    password: Annotated[
        str,
        typer.Option(
            "--password",
            metavar="PASSWORD",
            envvar="CORRAL_BROKER_PASSWORD",
            help="Needed off loopback. Better in the variable: everyone on the machine can see arguments.",
        ),
    ] = "",
    data_dir: options.DataDir = None,
) -> None:
    """Run the broker alone, in the foreground, for workers on several machines."""
    if not is_loopback(host) and not password:
        raise ConfigError(
            f"--host {host}: other machines could use the broker without a password; "
            "set CORRAL_BROKER_PASSWORD (openssl rand -hex 16), or keep to 127.0.0.1"
        )
    settings = options.load_with(data_dir=data_dir).settings
    checks.data_dir(settings.data_dir)
    number = checks.port(host, port, "broker", "give another --port")
    folder = settings.data_dir / "broker"
    held = lock.take(folder / "lock", "broker", "stop it, or give another --data-dir")
    os.set_inheritable(held, True)
    console.say("Broker ready for the other parts. Give each of them:")
    console.say(f"  export CORRAL_REDIS_URL={valkey.url(_reachable(host), number, password)}")
    become(valkey.command(folder, host, number, password), valkey.MEMORY | os.environ)


def _reachable(host: str) -> str:
    return socket.getfqdn() if host in ("0.0.0.0", "::", "*") else host  # noqa: S104 - read, never bound


def become(command: Sequence[str], environ: dict[str, str]) -> Never:
    """Run this command in place of the present one, in the same process."""
    sys.stdout.flush()
    os.execvpe(command[0], list(command), environ)  # noqa: S606 - the command is one of ours
