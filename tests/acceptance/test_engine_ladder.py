"""The engine ladder on the real engine and a scripted model: two rungs, their table, and nobody left behind."""

from pathlib import Path

import orjson
import psutil
import pytest

from infra.bench import engine as ladder
from infra.errors import StartError
from tests.doubles import scripted_model

pytestmark = pytest.mark.acceptance


def living_children() -> set[int]:
    """Pids of this process's descendants; other tests of the session may own some."""
    return {p.pid for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE}


def test_flags_that_corral_owns_are_refused_in_one_sentence(tmp_path: Path) -> None:
    model, before = str(scripted_model.write(scripted_model.long_text(), tmp_path)), living_children()
    with pytest.raises(StartError, match=r"^bench: engine_args: -c is not allowed here: use --context"):
        ladder.main(model=model, rungs="flash", engine_args="-c 5")
    assert living_children() <= before


def test_two_rungs_are_climbed_on_the_real_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, before = tmp_path / "figures.json", living_children()
    ladder.main(
        model=str(scripted_model.write(scripted_model.long_text(), tmp_path)),
        rungs="flash,ngram",
        slots=2,
        context=2048,
        prompt=40,
        tokens=16,
        times=1,
        rounds=2,
        json_file=file,
    )
    steps = orjson.loads(file.read_bytes())["steps"]
    names = [step["setting"] for step in steps]
    assert names[:3] == ["base line", "flash attention on", "flash attention off"]
    assert [step["problem"] for step in steps] == [""] * len(steps), "the embedded engine takes every flag"
    for step in steps[1:]:
        assert len(step["tried"]) == len(step["base"]) == 2
        assert all(one["prefill_per_s"] > 0 and one["decode_all_per_s"] > 0 for one in step["tried"])
    assert "Engine, one setting at a time" in capsys.readouterr().out
    assert living_children() <= before
