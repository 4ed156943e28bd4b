"""Which memory an engine would compute in."""

import sys

import pytest

from infra import device, machine
from infra.config import Settings
from infra.device import CARD_MARGIN_BYTES, MAIN_MEMORY, MIB, gpu_environment

pytestmark = pytest.mark.unit

LISTED = """\
load_backend: loaded CUDA backend
Available devices:
  CUDA0: NVIDIA H200 (143771 MiB, 143000 MiB free)
  CUDA1: NVIDIA GeForce RTX 4090 (Founders) (24564 MiB, 20000 MiB free)
"""
NATIVE = Settings(llama_server=sys.executable)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What the engine prints under `printed`; how it was asked under `environment`."""
    notes: dict[str, object] = {"printed": LISTED}

    def output_of(_tool: str, *arguments: str, environment: object = None) -> object:
        notes["environment"] = environment
        return notes["printed"] if arguments == ("--list-devices",) else ""

    monkeypatch.setattr(machine, "output_of", output_of)
    return notes


def test_the_cards_are_shown_by_the_variables_of_each_vendor() -> None:
    shown = gpu_environment("0,1")
    assert shown["CUDA_VISIBLE_DEVICES"] == shown["HIP_VISIBLE_DEVICES"] == "0,1"
    assert "ROCR_VISIBLE_DEVICES" not in shown
    assert gpu_environment("none")["CUDA_VISIBLE_DEVICES"] == ""
    assert gpu_environment("") == {}


def test_all_cards_that_the_engine_lists_count_together(asked: dict[str, object]) -> None:
    memory = device.memory(NATIVE.model_copy(update={"gpu": "1,2"}))
    assert (memory.total_bytes, memory.free_bytes) == ((143771 + 24564) * MIB, (143000 + 20000) * MIB)
    assert (memory.where, memory.margin_bytes) == ("CUDA0, CUDA1", 2 * CARD_MARGIN_BYTES)
    assert asked["environment"] == gpu_environment("1,2")


@pytest.mark.parametrize(
    ("settings", "printed"),
    [(NATIVE, "Available devices:\n"), (NATIVE, ""), (Settings(llama_server="embedded"), LISTED)],
)
def test_an_engine_without_cards_computes_in_main_memory(
    settings: Settings, printed: str, asked: dict[str, object]
) -> None:
    asked["printed"] = printed
    memory = device.memory(settings)
    assert (memory.where, memory.total_bytes) == (MAIN_MEMORY, machine.memory_bytes()[0])


def test_a_worker_for_the_processor_asks_no_card(asked: dict[str, object]) -> None:
    assert device.memory(NATIVE.model_copy(update={"gpu": "none"})).where == MAIN_MEMORY
    assert "environment" not in asked
