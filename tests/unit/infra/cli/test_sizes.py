"""The table of slots and windows, in `corral up` and `corral doctor`."""

from pathlib import Path

import pytest
import typer

from infra import device, machine
from infra.cli import doctor, plan, sizes, up
from infra.cli.plan import WorkerPlan
from infra.config import Settings
from infra.device import MAIN_MEMORY
from infra.gguf_plan import Memory

pytestmark = pytest.mark.unit

GIB = 2**30
AUTO = Settings(slots="auto", context_tokens="auto")


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> dict[str, Memory]:
    """Memory by the setting `gpu`; whatever is not in it is main memory of 2 GiB."""
    known: dict[str, Memory] = {}
    main = Memory(2 * GIB, 2 * GIB, 2**28, MAIN_MEMORY)
    monkeypatch.setattr(device, "memory", lambda settings: known.get(settings.gpu, main))
    monkeypatch.setattr(machine, "output_of", lambda _tool, *_arguments, **_options: "")
    return known


def test_workers_divide_what_they_share_and_nothing_else(cards: dict[str, Memory]) -> None:
    for gpu in "01":
        cards[gpu] = Memory(4 * GIB, 4 * GIB, GIB, f"CUDA{gpu}")
    staff = [WorkerPlan("a", "0", 1), WorkerPlan("b", "1", 1), WorkerPlan("c", "0", 1)]
    plans = sizes.of_workers(AUTO, staff)
    assert plans["a"] == plans["c"]
    assert plans["b"].budget_bytes == pytest.approx(2 * plans["a"].budget_bytes, abs=1)
    processor = sizes.of_workers(AUTO, [WorkerPlan("a", "7", 1), WorkerPlan("b", "8", 1)])
    assert processor["a"].budget_bytes == pytest.approx(0.85 * GIB, rel=1e-6)


def test_up_gives_every_worker_its_numbers_and_shows_them(
    cards: dict[str, Memory], capsys: pytest.CaptureFixture[str]
) -> None:
    staff = (WorkerPlan("a", "", 1),)
    (sized,) = up._sized(AUTO, staff)
    own = plan.worker_settings(AUTO, sized)
    assert (own.slots, own.scratch_slots, own.context_tokens) == (9, 1, 32768)
    shown = capsys.readouterr().out
    assert "9 + 1 scratch x 32768" in shown
    assert "3.0 KiB" in shown
    assert up._sized(Settings(), staff) == staff
    assert capsys.readouterr().out == ""


def test_the_doctor_shows_the_plan_of_a_model_without_starting_it(
    cards: dict[str, Memory], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(typer.Exit):
        doctor.doctor(slots="auto", context="auto", data_dir=tmp_path)
    shown = capsys.readouterr().out
    assert "9 of 32768 tokens fit into memory" in shown
    assert "Slots x window" in shown


@pytest.mark.parametrize(
    ("slots", "context", "words", "code"),
    [
        ("40", "32768", "more than should be taken of the memory that is free", 0),
        ("4", "8192", "first request alone takes about 30000", 0),
        ("auto", "4000000", "what would fit: --context 32768", 1),
    ],
)
def test_the_doctor_says_what_is_wrong_with_slots_and_window(
    slots: str,
    context: str,
    words: str,
    code: int,
    cards: dict[str, Memory],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    with pytest.raises(typer.Exit) as ended:
        doctor.doctor(slots=slots, context=context, data_dir=tmp_path)
    assert words in capsys.readouterr().out
    assert ended.value.exit_code == code
