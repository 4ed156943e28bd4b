"""Real Claude Code in a tool loop whose worker is killed while it answers, in every turn."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import WINDOW_TOKENS
from tests.chaos.house import House
from tests.chaos.run import house_in
from tests.doubles import scripted_model as scripts
from tests.doubles.claude import ClaudeCode
from tests.doubles.cluster import SOON
from tests.doubles.scripted_model import Script

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(400)]

TURNS = 2
LAST = "corral-finale-5d2b"
# The word that ends the loop stands in what the tool prints and not in its command: quotes part it there.
COMMAND = f"echo ran >> turns; [ $(grep -c ran turns) -lt {TURNS} ] || echo corral-finale''-5d2b"
CALL = scripts.call("Bash", {"command": COMMAND, "description": "one step"})
LOOP = Script(
    "loop-until-told",
    " ".join(f"end{number:04}" for number in range(1, 1001)),
    f"{scripts.long_text(1000).answer}\n{CALL}",
    told=(LAST,),
)
POLL_S = 0.01
BEGUN = 3  # entries of a stream: the answer is being told


@contextmanager
def killing_each_worker_that_answers(house: House) -> Iterator[list[str]]:
    """Each job's worker is killed once, while the job's answer is being told. Gives the jobs that this hit."""
    hit: list[str] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(POLL_S):
            for name in house.first_workers:
                for job in map(str, house.redis.hkeys(f"corral:running:{name}")):
                    if job not in hit and house.redis.xlen(f"corral:stream:{job}") >= BEGUN:
                        hit.append(job)
                        house.workers[name].send(signal.SIGKILL)

    thread = threading.Thread(target=watch, name="killer")
    thread.start()
    try:
        yield hit
    finally:
        over.set()
        thread.join()


def test_the_session_ends_right_and_its_tool_ran_as_often_as_scripted(tmp_path: Path, claude: ClaudeCode) -> None:
    model = scripts.write(LOOP, tmp_path)
    options: dict[str, Any] = {"engine": "embedded", "slots": 2, "context_tokens": WINDOW_TOKENS, "settings": SOON}
    with (
        house_in(tmp_path / "0", model=model, **options) as house,
        killing_each_worker_that_answers(house) as hit,
    ):
        outcome = claude.run("Please begin.", url=house.url, agent="struck", workspace="struck", timeout_s=150)
    assert (outcome.status, outcome.text) == (0, LOOP.answer), outcome.stdout[-2000:]
    ran = (claude.folder / "struck" / "repository" / "turns").read_text().split()
    assert ran == ["ran"] * TURNS
    assert len(hit) >= TURNS + 1
    retries = {line["job"]: line["retries"] for line in house.log_lines() if line.get("event") == "request"}
    assert [retries[job] for job in hit if retries.get(job, 1) < 1] == [], "each was killed ahead of its end"
