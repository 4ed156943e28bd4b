"""Whether saved caches help a model: tried once, remembered with care, and nothing unlike is ever mixed."""

import json
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import structlog

from infra.config import Settings
from infra.errors import EngineError, EngineLost, EngineRefused
from scheduler.policy.swap import Speeds
from tests.doubles.slot_engine import SlotEngine
from workers.llama.client import Prefilled
from workers.store import Store
from workers.store_probe import decide, prepare, space

pytestmark = pytest.mark.unit


class Probed(SlotEngine):
    """An engine that takes bare prompts; `useless`: what it restores is of no use, as with a sliding window."""

    def __init__(self, folder: Path, useless: bool = False) -> None:
        folder.mkdir(exist_ok=True)
        super().__init__(folder, 4)
        self.useless = useless
        self.asked = 0

    def prefill(self, prompt: str, slot: int) -> Prefilled:  # type: ignore[override]
        self.asked += 1
        words = prompt.split()
        pairs = zip(self.held[slot], words[:-1], strict=False)
        cached = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        self.held[slot] = words
        if self.useless and self.restores:
            cached = 0
        return Prefilled(len(words), cached, float(len(words) - cached))


def decided(folder: Path, engine: Probed, slots: int = 4, window: int = 0) -> Any:
    store = Store(folder, "space", 10**12, 1e6)
    return decide(engine.client, store, folder, "space", slots, window)


# --- the probe ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 4])
def test_where_a_restore_brings_the_prompt_back_caches_are_saved_at_the_measured_speeds(
    tmp_path: Path, slots: int
) -> None:
    verdict = decided(tmp_path / "kv", Probed(tmp_path / "kv"), slots)
    assert verdict.off == ""
    assert verdict.speeds.prefill_tokens_per_s == pytest.approx(1000)
    assert verdict.speeds.save_bytes_per_s == pytest.approx(5e7)
    assert verdict.speeds.restore_bytes_per_s == pytest.approx(1e9)
    assert list((tmp_path / "kv").glob("*.kv")) == []


@pytest.mark.parametrize("slots", [1, 4])
def test_where_a_restore_brings_nothing_back_they_are_not_and_it_is_said_why(tmp_path: Path, slots: int) -> None:
    verdict = decided(tmp_path / "kv", Probed(tmp_path / "kv", useless=True), slots)
    assert "restored 0 of" in verdict.off or "sliding window" in verdict.off
    assert verdict.speeds is None


def test_the_probe_s_prompt_is_longer_than_the_window(tmp_path: Path) -> None:
    engine = Probed(tmp_path / "kv")
    decided(tmp_path / "kv", engine, window=4000)
    assert max(map(len, engine.held)) > 2000  # words, each of which is more than one token to a real model


def test_a_verdict_is_remembered(tmp_path: Path) -> None:
    for useless in (True, False):
        folder = tmp_path / f"{useless}"
        first, again = Probed(folder, useless), Probed(folder, useless)
        assert decided(folder, first) == decided(folder, again)
        assert (first.asked > 0, again.asked) == (True, 0)


@pytest.mark.parametrize("error", [EngineLost("gone"), EngineRefused("the engine refused: no", status=501)], ids=type)
@pytest.mark.parametrize("act", ["save", "restore"])
def test_a_probe_that_fails_is_no_verdict_and_is_tried_again_at_the_next_start(
    tmp_path: Path, act: str, error: EngineError
) -> None:
    folder = tmp_path / "kv"
    engine = Probed(folder)
    with structlog.testing.capture_logs() as logged, engine.failing(act, error):
        assert error.message in decided(folder, engine).off
    assert [line["event"] for line in logged] == ["store_not_probed"]
    assert list(folder.glob("*.kv")) == []
    assert decided(folder, Probed(folder)).off == ""


def test_a_probe_that_measured_no_speed_is_tried_again_too(tmp_path: Path) -> None:
    engine = Probed(tmp_path)
    engine.prefill(" ".join(str(100 + number % 900) for number in range(300)), 0)  # so that hardly a token is new
    assert "too short" in decided(tmp_path, engine).off
    assert decided(tmp_path, Probed(tmp_path)).off == ""


GOOD = {"prefill_tokens_per_s": 1.0, "save_bytes_per_s": 2.0, "restore_bytes_per_s": 3.0, "bytes_per_token": 4.0}


@pytest.mark.parametrize(
    "known",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"off": ""}',
        json.dumps({"off": "", "speeds": None}),
        json.dumps({"off": "", "speeds": {"prefill_tokens_per_s": 1}}),
        json.dumps({"off": "", "speeds": GOOD | {"save_bytes_per_s": 0}}),
        json.dumps({"off": "", "speeds": GOOD | {"bytes_per_token": -1}}),
        json.dumps({"off": "", "speeds": GOOD | {"restore_bytes_per_s": "fast"}}),
        json.dumps({"off": "", "speeds": GOOD | {"prefill_tokens_per_s": None}}),
        json.dumps({"off": "", "speeds": GOOD | {"prefill_tokens_per_s": float("nan")}}),
        json.dumps({"off": "", "speeds": GOOD | {"prefill_tokens_per_s": float("inf")}}),
        json.dumps({"off": 7, "speeds": None}),
    ],
)
def test_a_remembered_verdict_that_is_none_is_not_believed(tmp_path: Path, known: str) -> None:
    folder = tmp_path / "kv"
    engine = Probed(folder)
    (folder / "space.probe.json").write_text(known)
    assert decided(folder, engine).off == ""
    assert engine.asked


def test_a_remembered_verdict_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "space.probe.json").write_text(json.dumps({"off": "", "speeds": GOOD}))
    assert decided(tmp_path, Probed(tmp_path)).speeds == Speeds(1.0, 2.0, 3.0, 4.0)


def test_a_verdict_that_cannot_be_written_holds_for_this_run(tmp_path: Path) -> None:
    (tmp_path / "space.probe.json").mkdir()
    with structlog.testing.capture_logs() as logged:
        assert decided(tmp_path, Probed(tmp_path)).off == ""
    assert "verdict_not_kept" in [line["event"] for line in logged]


# --- the folder and the space ---------------------------------------------------------------------------------------


def settings(folder: Path, **changes: object) -> Settings:
    return Settings(data_dir=folder, **changes)


def test_the_folder_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    assert prepare(settings(tmp_path)) == ""
    assert (tmp_path / "kv").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "kv").touch()
    assert str(tmp_path / "kv") in prepare(settings(tmp_path))


def test_no_folder_is_made_when_the_store_is_off(tmp_path: Path) -> None:
    assert "off" in prepare(settings(tmp_path, store_dir="off"))
    assert list(tmp_path.iterdir()) == []


def test_nothing_that_makes_a_cache_another_is_mixed(tmp_path: Path) -> None:
    plain = settings(tmp_path)
    names = [
        space(plain, "hash", "b1", 4096),
        space(plain, "other", "b1", 4096),
        space(plain, "hash", "b2", 4096),
        space(plain, "hash", "b1", 8192),
        space(settings(tmp_path, engine_args="-ctk q8_0"), "hash", "b1", 4096),
        space(settings(tmp_path, engine_args="-ctv q8_0 -fa on"), "hash", "b1", 4096),
        space(settings(tmp_path, engine_args="--rope-scale 2"), "hash", "b1", 4096),
    ]
    assert len(set(names)) == len(names)
    assert space(plain, "hash", "b1", 4096) == names[0]


def test_a_space_is_a_part_of_a_file_s_name_whatever_the_build_says(tmp_path: Path) -> None:
    name = space(settings(tmp_path), "hash", "b1 (../../etc: a.b/c)", 4096)
    assert not set(name) & set("/. :()")
    assert len(space(settings(tmp_path), "h" * 500, "b" * 500, 4096)) <= 120


def test_a_very_long_build_does_not_hide_what_comes_after_it(tmp_path: Path) -> None:
    one = space(settings(tmp_path), "hash", "b" * 200, 4096)
    other = space(settings(tmp_path), "hash", "b" * 200, 8192)
    assert one != other
