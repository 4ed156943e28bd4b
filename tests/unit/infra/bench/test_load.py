"""What a round of `load` and of `overhead --compare` counts, and that no arm lives on another one's texts."""

from collections.abc import Callable

import pytest

from infra.bench import load, overhead_compare
from infra.bench.asking import Outcome
from infra.bench.bodies import INTRODUCTION
from infra.bench.latency import Load
from infra.bench.report import Figures

pytestmark = pytest.mark.unit

FINE, REFUSED = Outcome(0.5, 1.0, output_tokens=5), Outcome(0.001, 0.001, error="status 529")


@pytest.mark.parametrize(
    "figures", [load.figures, lambda outcomes, took_s: overhead_compare.figures((), outcomes, took_s)]
)
def test_refusals_are_no_fast_answers(figures: Callable[[list[Outcome], float], Figures]) -> None:
    found = figures([FINE] * 4 + [REFUSED] * 96, 2.0)
    assert (found["per_s"], found["failed"]) == (2.0, 96)


def test_arms_have_the_same_work_in_other_words() -> None:
    work = Load("seed", 4_000, 8)
    bodies = [
        work.of_arm(name).conversation("client0").chat_body(0, "ask", 0).decode() for name in ("one", "zweite, größer")
    ]
    prompts = [body.partition(INTRODUCTION)[2] for body in bodies]
    assert work.of_arm("größer").conversation("a").headers["x-claude-code-session-id"].isascii()
    assert prompts[0][:60] != prompts[1][:60]
    assert abs(len(prompts[0]) - len(prompts[1])) < 60
