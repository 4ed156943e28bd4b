"""What `corral up` is going to start, decided before anything is.

Owns: how many workers, which cards, threads and name each gets; ports and broker address.
Never: starts anything.
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from infra import sizing
from infra.cli import parts
from infra.config import Loaded, Settings
from infra.errors import ConfigError
from infra.gguf_plan import Plan

MOST_WORKERS = 64


@dataclass(frozen=True)
class WorkerPlan:
    """One worker: its name in the cluster, its cards as a setting, its engine's threads. `size`: slots and window,
    where the settings leave them open. `metrics_port`: 0 for none."""

    name: str
    gpu: str
    threads: int
    size: Plan | None = None
    metrics_port: int = 0


def workers(loaded: Loaded, wanted: str, cards: Sequence[str], cores: int) -> tuple[WorkerPlan, ...]:
    """The workers of this machine. Raises ConfigError for a number that is none.

    `auto` is one worker a card, or one for all cards of --gpu, or one on the CPU.
    """
    settings = loaded.settings
    count = _count(wanted, 1 if settings.gpu else max(1, len(cards)))
    threads = settings.threads or max(1, (cores - 1) // count)
    names = _names(loaded, count)
    ports = [settings.metrics_port and settings.metrics_port + number for number in range(count)]
    given = zip(names, assign(settings.gpu, cards, count), ports, strict=True)
    return tuple(WorkerPlan(name, gpu, threads, metrics_port=port) for name, gpu, port in given)


def assign(given: str, cards: Sequence[str], count: int) -> list[str]:
    """The `gpu` setting of each worker: the cards dealt in runs, or shared in turn when workers are more."""
    available = given.split(",") if given else list(cards)
    if given == "none" or not available:
        return [given] * count
    if count > len(available):
        return [available[number % len(available)] for number in range(count)]
    share, rest = divmod(len(available), count)
    ends = [share * number + min(number, rest) for number in range(count + 1)]
    return [",".join(available[start:end]) for start, end in itertools.pairwise(ends)]


def _count(wanted: str, automatic: int) -> int:
    if wanted == "auto":
        return automatic
    if not re.fullmatch(r"\d{1,3}", wanted) or not 0 < int(wanted) <= MOST_WORKERS:
        raise ConfigError(f"--workers {wanted}: must be a number from 1 to {MOST_WORKERS}, or auto")
    return int(wanted)


def _names(loaded: Loaded, count: int) -> list[str]:
    settings = loaded.settings
    if loaded.sources["worker_name"] != "default":
        base = settings.worker_name
        return [base] if count == 1 else [f"{base.rstrip('0123456789')}{number}" for number in range(1, count + 1)]
    # A broker shared with other machines knows each worker by name, so the name says whose it is.
    prefix = f"{parts.machine_name()}-" if settings.redis_url else ""
    return [f"{prefix}w{number}" for number in range(1, count + 1)]


def worker_settings(settings: Settings, plan: WorkerPlan) -> Settings:
    """The settings of one worker's process."""
    own = settings.model_copy(
        update={
            "worker_name": plan.name,
            "gpu": plan.gpu,
            "threads": plan.threads,
            "metrics_port": plan.metrics_port,
        }
    )
    return sizing.with_plan(own, plan.size) if plan.size else own
