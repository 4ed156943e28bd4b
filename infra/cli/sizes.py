"""The table of what slots and windows come to in memory.

Owns: the plan of each worker of this machine before one is started, and how it is shown.
Never: the sum, or what `auto` means; `infra.sizing` and `infra.gguf_plan` do.
"""

from collections.abc import Mapping, Sequence

from infra import device, sizing
from infra.cli import console
from infra.cli.plan import WorkerPlan
from infra.config import Settings
from infra.device import MAIN_MEMORY
from infra.gguf_plan import Memory, Plan

KIB, MIB = 2**10, 2**20
RIGHT = ("Weights", "KV a token", "A slot", "Buffers", "In all", "May take")


def of_workers(settings: Settings, staff: Sequence[WorkerPlan]) -> dict[str, Plan]:
    """The plan of each worker by name: numbers as they are set, whether they fit or not, and found where they are auto.

    Raises StartError when nothing fits or the file does not say enough, ConfigError for a model that is not here.
    """
    facts = sizing.facts_of(settings)
    memory_of = {gpu: device.memory(settings.model_copy(update={"gpu": gpu})) for gpu in {w.gpu for w in staff}}
    make = sizing.planned if sizing.is_auto(settings) else sizing.as_set
    return {w.name: make(settings, facts, memory_of[w.gpu], _sharers(w, staff, memory_of[w.gpu])) for w in staff}


def show(plans: Mapping[str, Plan]) -> None:
    """One line a worker; nothing when there is no plan."""
    if not plans:
        return
    table = console.grid("Worker", "Slots x window", *RIGHT, right=RIGHT)
    for name, plan in plans.items():
        scratch = f" + {plan.scratch_slots} scratch" if plan.scratch_slots else ""
        table.add_row(
            name,
            f"{plan.slots}{scratch} x {plan.context_tokens}",
            console.size(plan.weights_bytes),
            _small(plan.token_bytes),
            console.size(plan.slot_bytes),
            console.size(plan.buffers_bytes),
            console.size(plan.total_bytes),
            console.size(plan.budget_bytes),
        )
    console.show(table)


def _sharers(worker: WorkerPlan, staff: Sequence[WorkerPlan], memory: Memory) -> int:
    """Engines that take from the same memory: all of them from main memory, those with the same cards from these."""
    if memory.where == MAIN_MEMORY:
        return len(staff)
    return sum(other.gpu == worker.gpu for other in staff)


def _small(size: float) -> str:
    return f"{size / KIB:.1f} KiB" if size < MIB else console.size(size)
