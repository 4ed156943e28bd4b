"""Numbers in place of `auto`, and the words when there are none."""

from collections.abc import Callable
from pathlib import Path

import pytest

from infra import device, sizing
from infra.config import Settings
from infra.device import MAIN_MEMORY
from infra.errors import ConfigError, StartError
from infra.gguf_plan import Memory
from infra.model_facts import Cache, Facts
from infra.model_setting import HfModel
from tests.doubles.cluster import empty_model
from tests.doubles.scripted_model import KV_HEAVY, TEXT_ONLY, Script

pytestmark = pytest.mark.unit

GIB = 2**30
AUTO = Settings(slots="auto", context_tokens="auto")
CODER = Facts(131072, 8 * GIB, (Cache(1024, 1024),) * 36, layers=36, vocabulary=151936, width=4096, forward_width=12288)


def card(gib: float) -> Memory:
    return Memory(int(gib * GIB), int(gib * GIB), GIB, "CUDA0")


def changed(**values: object) -> Settings:
    return AUTO.model_copy(update=values)


def refusal(settings: Settings, facts: Facts, memory: Memory, sharers: int = 1) -> str:
    with pytest.raises(StartError) as caught:
        sizing.planned(settings, facts, memory, sharers)
    return caught.value.message


def test_a_worker_gets_numbers_for_all_that_is_auto(
    model_path: Callable[[Script], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "memory", lambda _settings: card(80))
    settings = sizing.resolved(AUTO, model_path(KV_HEAVY))
    assert (settings.slots, settings.scratch_slots, settings.context_tokens) == (16, 0, 262144)
    fixed = sizing.resolved(changed(slots=3), model_path(TEXT_ONLY))
    assert (fixed.slots, fixed.context_tokens) == (3, 262144)
    assert sizing.shape(settings).engine_slots == 16


def test_numbers_are_left_as_they_are_and_only_the_scratch_slots_are_looked_up(
    model_path: Callable[[Script], Path], tmp_path: Path
) -> None:
    for model in (model_path(TEXT_ONLY), empty_model(tmp_path), HfModel("a/b", "")):
        settings = sizing.resolved(Settings(), model)
        assert (settings.slots, settings.scratch_slots, settings.context_tokens) == (4, 0, 32768)
    assert sizing.resolved(Settings(scratch_slots=2), HfModel("a/b", "")).scratch_slots == 2


def test_the_demo_model_is_known_before_it_is_assembled_and_keeps_a_scratch_slot() -> None:
    plan = sizing.as_set(Settings(), sizing.facts_of(Settings()), card(24))
    assert (plan.slots, plan.scratch_slots, plan.token_bytes) == (4, 1, 3 * 1024)


def test_a_model_that_is_not_here_yet_cannot_be_planned() -> None:
    with pytest.raises(ConfigError, match=r"^--slots auto --context auto: the model is not on this machine yet"):
        sizing.facts_of(changed(model="hf:a/b"))
    with pytest.raises(ConfigError, match=r"^--context auto: the model is not"):
        sizing.resolved(changed(slots=4), HfModel("a/b", ""))


def test_a_file_that_does_not_say_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"standin.gguf does not say ARCHITECTURE.block_count"):
        sizing.resolved(AUTO, empty_model(tmp_path))


def test_files_that_are_loaded_beside_weigh_too(model_path: Callable[[Script], Path]) -> None:
    model = model_path(TEXT_ONLY)
    beside = changed(engine_args=f"--mmproj '{model}'")
    assert sizing.facts_of(beside, model).weights_bytes == 2 * model.stat().st_size


@pytest.mark.parametrize("flags", ["--n-cpu-moe 20", "-ngl 12"])
def test_a_model_that_is_partly_elsewhere_is_not_planned_on_a_card(flags: str) -> None:
    settings = changed(engine_args=flags)
    with pytest.raises(ConfigError, match=rf"engine_args: {flags.split(maxsplit=1)[0]} keeps a part"):
        sizing.planned(settings, CODER, card(80))
    assert sizing.planned(settings, CODER, Memory(80 * GIB, 80 * GIB, 0, MAIN_MEMORY)).slots
    assert sizing.planned(changed(engine_args="-ngl 99"), CODER, card(80)).slots


def test_a_refusal_names_each_setting_that_would_do_by_itself() -> None:
    message = refusal(AUTO, CODER, card(16))
    assert "1 slot of 32768 tokens and 8.0 GiB of weights need" in message
    assert '--engine-args "-ctk q8_0 -ctv q8_0"' in message
    assert message.endswith("or a smaller model or quantisation")
    assert "--slots" not in message
    many = refusal(changed(slots=8), CODER, card(24))
    assert "or --slots 2, or a smaller model" in many
    wide = refusal(changed(context_tokens=131072), CODER, card(24))
    assert "--context 32768" in wide
    shared = refusal(AUTO, CODER, card(40), sharers=4)
    assert "shared by 4 workers" in shared
    assert "--workers 2" in shared
    scratch = refusal(changed(scratch_slots=4), CODER, card(24))
    assert "CORRAL_SCRATCH_SLOTS=0" in scratch


def test_what_a_refusal_advises_does_fit() -> None:
    assert sizing.planned(changed(engine_args="-ctk q8_0 -ctv q8_0"), CODER, card(16)).fits
    assert sizing.planned(changed(slots=2), CODER, card(24)).fits
    assert sizing.planned(AUTO, CODER, card(40), 2).fits


def test_a_model_too_short_for_the_first_request_is_refused_but_may_be_tried() -> None:
    short = Facts(16384, GIB, (Cache(1024, 1024),) * 8)
    message = refusal(AUTO, short, card(80))
    assert "trained for a window of 16384 tokens" in message
    assert "about 30000" in message
    assert sizing.planned(changed(context_tokens=16384), short, card(80)).slots == 16
