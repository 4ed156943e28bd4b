"""An answer of 2,000 words whose worker is killed at random words is the undisturbed one. More of them by command."""

from pathlib import Path

import pytest

from tests.chaos.kills import house_for_kills, kills

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(400)]


def test_an_answer_whose_worker_is_killed_at_a_random_word_is_the_undisturbed_one(tmp_path: Path) -> None:
    with house_for_kills(tmp_path / "0") as house:
        done = kills(house, 3, seed=7, say=print)
    assert [kill.wrong for kill in done] == [""] * 3
    assert max(kill.attempts for kill in done) == 2  # else nothing was killed in time
