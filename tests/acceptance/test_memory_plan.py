"""The planned KV cache against the one that the real engine allocates, as its log says."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from infra import engine_options, gguf_plan, model_facts, sizing
from infra.config import Settings
from infra.network import free_port
from tests.doubles.processes import Child, base_environment
from tests.doubles.scripted_model import KV_HEAVY, Script
from tests.doubles.services import wait_for
from workers.llama import command
from workers.llama.model import ModelProfile, resolve

pytestmark = pytest.mark.acceptance

ALLOCATED = re.compile(r"(?:KV|RS) buffer size = +([\d.]+) MiB")
ALL_ALLOCATED = "compute buffer size"
MIB = 2**20


def allocated_mib(settings: Settings, model: Path, folder: Path) -> float:
    """What an engine with these settings says it allocated for all of its slots."""
    line = command.command(command.choose_engine(settings), settings, model, free_port(), ModelProfile())
    log = folder / "engine.log"
    with Child(line, log, base_environment(folder), folder):
        wait_for(lambda: ALL_ALLOCATED in log.read_text(errors="replace"), f"the engine's buffers in {log}", 60)
    return sum(map(float, ALLOCATED.findall(log.read_text(errors="replace"))))


@pytest.mark.parametrize(("kind", "flags"), [("demo", ""), ("heavy", "-ctk q8_0 -ctv q4_0")])
def test_the_planned_cache_is_the_one_that_the_engine_allocates(
    kind: str, flags: str, tmp_path: Path, model_path: Callable[[Script], Path]
) -> None:
    model = model_path(KV_HEAVY) if kind == "heavy" else resolve("demo", tmp_path)
    assert isinstance(model, Path)
    wanted = Settings(
        llama_server="embedded",
        slots=2,
        context_tokens=8192,
        threads=1,
        engine_args=f"-lv 5 {flags}",
        data_dir=tmp_path,
    )
    settings = sizing.resolved(wanted, model)
    shape = sizing.shape(settings)
    assert shape.engine_slots == (2 if kind == "heavy" else 3)
    slot = gguf_plan.slot_bytes(model_facts.read(model), engine_options.read(flags), shape.context_tokens)
    assert allocated_mib(settings, model, tmp_path) == pytest.approx(shape.engine_slots * slot / MIB, rel=0.02)
