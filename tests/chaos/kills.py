"""kill -9 of the worker at a random word of one long answer, again and again.

Owns: the model, the place of each kill, and whether the answer is the undisturbed one.
Never: other faults.
"""

import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.acceptance.test_going_on import cut
from tests.acceptance.wire import ask, text_of, user
from tests.chaos.house import House
from tests.chaos.run import house_in
from tests.doubles import scripted_model as scripts
from tests.doubles.cluster import SOON, Cluster

WORDS = 2000
MODEL = scripts.long_text(WORDS)
MOST_TOKENS = 20_000


@dataclass(frozen=True)
class Kill:
    """One answer whose worker was killed when it had said `word`. `wrong` is '' when the answer is right."""

    word: str
    worker: str
    attempts: int
    wrong: str


@contextmanager
def house_for_kills(folder: Path) -> Iterator[House]:
    """Two workers on the real engine that answer with 2,000 words."""
    model = scripts.write(MODEL, folder.parent)
    with house_in(folder, engine="embedded", model=model, slots=2, settings=SOON) as house:
        yield house


def kills(house: House, count: int, seed: int, say: Callable[[Kill], None]) -> list[Kill]:
    """Do it `count` times; the same seed kills at the same words."""
    dice = random.Random(seed)
    whole = ask(house, user("go"), max_tokens=MOST_TOKENS)
    assert text_of(whole) == MODEL.answer
    done: list[Kill] = []
    for number in range(1, count + 1):
        word = f"step{dice.randint(1, WORDS):04}"
        done.append(_kill(house, word, f"go, answer {number}"))
        say(done[-1])
        house.wait_whole()
    return done


def _kill(house: House, word: str, asked: str) -> Kill:
    events, headers = cut(house, _kill_worker, word, user(asked), temperature=0)
    wrong = "" if events[-1]["type"] == "message_stop" else f"ended with {events[-1]}"
    if not wrong and text_of(events) != MODEL.answer:
        wrong = f"said {len(text_of(events))} characters, {len(MODEL.answer)} expected"
    request = headers["request-id"]
    line = house.wait_log(lambda line: line.get("event") == "request" and line.get("request_id") == request)
    return Kill(word, headers["x-corral-worker"], int(line["attempt"]), wrong)


def _kill_worker(cluster: Cluster, name: str) -> None:
    cluster.workers[name].send(signal.SIGKILL)
