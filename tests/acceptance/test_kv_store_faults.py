"""Saved caches that go wrong, on the real engine: every answer stays right, each kind of trouble is told once.

The model says one thing or another as a word at the very beginning of the prompt tells it, so an answer shows whether
the cache it was made from is the conversation's own.
"""

import itertools
import json
import resource
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import running
from tests.acceptance.test_kv_store import TOOL, WINDOW_TOKENS, store, words
from tests.doubles.cluster import Cluster
from tests.doubles.engine import EngineProcess
from tests.doubles.scripted_model import Script, brief_of, medley
from tests.doubles.services import wait_for

pytestmark = pytest.mark.acceptance
# Of as many tokens each, so that their files are of one size.
LEFT, RIGHT = Script("left", "Turn left beside old mills."), Script("right", "Keep right behind tall oaks.")
PAIR = medley(LEFT, RIGHT)
BODY = words("body", 1500)
OTHERS = itertools.count()


class Talk:
    """A conversation whose first word decides what the model answers."""

    def __init__(self, cluster: Cluster, name: str, script: Script, body: str = BODY) -> None:
        self.cluster, self.name, self.script = cluster, name, script
        self.system = f"Obey {brief_of(script)} now. {body} {name}"
        self.messages: list[dict[str, Any]] = []

    def turn(self) -> int:
        """Ask, check the answer. Returns the tokens that were in a cache."""
        self.messages.append({"role": "user", "content": words((self.name, len(self.messages)), 60)})
        body = {"model": "m", "max_tokens": 64, "system": self.system, "messages": self.messages, "tools": [TOOL]}
        answer = self.cluster.http.post("/v1/messages", json=body, headers={"x-claude-code-session-id": self.name})
        assert answer.status_code == 200, answer.text
        content = answer.json()["content"]
        assert [block["text"] for block in content] == [self.script.answer]
        self.messages.append({"role": "assistant", "content": content})
        return int(answer.headers["x-corral-cached-tokens"])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, model_path: Callable[[Script], Path]) -> Iterator[Cluster]:
    """One worker with two slots, which saves and restores."""
    folder = tmp_path_factory.mktemp("faults") / "0"
    options: dict[str, Any] = {"workers": 1, "slots": 2, "engine": "embedded", "context_tokens": WINDOW_TOKENS}
    with running(folder, model=model_path(PAIR), settings={"lease_renew_s": 0.1}, **options) as started:
        assert store(started)["off"] == ""
        yield started


Anew = Callable[..., None]


@pytest.fixture
def anew(cluster: Cluster) -> Anew:
    """A function that puts another worker, with other settings, in the place of the present one."""

    def start(**settings: object) -> None:
        cluster.stop_worker(worker(cluster))
        remove_store(cluster)
        cluster.add_worker(f"w{len(cluster.workers) + 1}", settings=settings)

    return start


def worker(cluster: Cluster) -> str:
    """The name of the one that runs."""
    return list(cluster.workers)[-1]


def info(cluster: Cluster) -> dict[str, Any]:
    """What its lease says."""
    [told] = [told for told in cluster.status()["workers"] if told["name"] == worker(cluster)]
    return dict(told)


def kv(cluster: Cluster) -> Path:
    return cluster.folder / "data" / "kv"


def crowd_out(cluster: Cluster) -> None:
    """Two others of more value take both slots, so that whoever was there lives on in the store alone."""
    for _ in range(2):
        Talk(cluster, f"other-{next(OTHERS)}", RIGHT, f"{BODY} {BODY}").turn()


def remove_store(cluster: Cluster) -> None:
    """Under a worker that may write there this moment."""

    def gone() -> bool:
        shutil.rmtree(kv(cluster), ignore_errors=True)
        return not kv(cluster).exists()

    wait_for(gone, "the folder to be gone")


def remove_bases(cluster: Cluster) -> None:
    """Each would stand in for a conversation's own file."""
    for path in kv(cluster).glob("*.b-*"):
        path.unlink(missing_ok=True)


def lose_slot(cluster: Cluster, talk: Talk) -> str:
    """Crowd the conversation out of its slot. Returns its name in the store."""

    def owned() -> list[str]:
        return [str(slot["conversation"]) for slot in info(cluster)["slots"] if slot["agent"] == talk.name]

    def crowded_out() -> bool:
        crowd_out(cluster)
        return not owned()

    [name] = wait_for(owned, f"a slot of {talk.name}")
    wait_for(crowded_out, f"{talk.name} to lose its slot")
    return name


def file_of(cluster: Cluster, talk: Talk) -> Path:
    """The conversation's file, once it has lost its slot and the file has been described."""
    name = lose_slot(cluster, talk)
    [path] = wait_for(lambda: list(kv(cluster).glob(f"*.c-{name}.json")), "the description of a saved file")
    return kv(cluster) / str(json.loads(path.read_text())["file"])


def warnings(cluster: Cluster) -> list[str]:
    lines = cluster.worker_log_lines(worker(cluster))
    return [str(line["kind"]) for line in lines if line["event"] == "cache_not_moved"]


def failures(cluster: Cluster) -> int:
    return int(info(cluster)["store"]["failures"])


def wait_failures(cluster: Cluster, count: int) -> None:
    wait_for(lambda: failures(cluster) == count, f"{count} failures to be told")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) * 3 // 4] ^= 1
    path.write_bytes(data)


def poisoned(mine: bytes, other: bytes) -> bytes:
    """The tokens of one file with the cache of another of the same length: the engine takes it for its own."""
    place = 12 + 4 * struct.unpack_from("<I", mine, 8)[0]
    assert len(mine) == len(other)
    return mine[:place] + other[place:]


def completed(engine: EngineProcess, script: Script, slot: int) -> tuple[str, int]:
    """The engine's answer to a prompt that begins with the script's word, and its cached tokens."""
    messages = [{"role": "user", "content": f"Obey {brief_of(script)} now. {BODY}"}]
    tool = {"type": "function", "function": {"name": "Read", "parameters": {"type": "object", "properties": {}}}}
    body = {"messages": messages, "tools": [tool], "id_slot": slot, "max_tokens": 64, "temperature": 0}
    answer = engine.http.post("/v1/chat/completions", json=body).json()
    return answer["choices"][0]["message"]["content"], answer["timings"]["cache_n"]


def poison(folder: Path, model: Path) -> bool:
    """Whether the engine by itself is taken in by such a file; without that the tests below would prove nothing."""
    options: dict[str, Any] = {"slots": 2, "context_tokens": WINDOW_TOKENS, "store": folder}
    with EngineProcess(folder, model, kind="embedded", **options) as engine:
        files = {}
        for slot, script in enumerate((LEFT, RIGHT)):
            assert completed(engine, script, slot)[0] == script.answer
            engine.http.post(f"/slots/{slot}?action=save", json={"filename": script.name}).raise_for_status()
            files[script] = (folder / script.name).read_bytes()
        (folder / "poison").write_bytes(poisoned(files[LEFT], files[RIGHT]))
        engine.http.post("/slots/1?action=restore", json={"filename": "poison"}).raise_for_status()
        said, cached = completed(engine, LEFT, 1)
    return cached > 1000 and said == RIGHT.answer


def test_the_engine_itself_answers_from_a_wrong_cache(tmp_path: Path, model_path: Callable[[Script], Path]) -> None:
    assert poison(tmp_path, model_path(PAIR))


@pytest.mark.parametrize(
    ("spoil", "kind"), [(cut, "size"), (flip, "checksum"), (Path.unlink, "missing")], ids=["cut", "flipped", "missing"]
)
def test_a_spoilt_file_costs_a_prefill_and_one_warning(
    cluster: Cluster, spoil: Callable[[Path], None], kind: str
) -> None:
    failed = failures(cluster)
    talk = Talk(cluster, kind, LEFT)
    talk.turn()
    for number in (1, 2):
        spoil(file_of(cluster, talk))
        remove_bases(cluster)
        assert talk.turn() < 500
        wait_failures(cluster, failed + number)
    assert warnings(cluster).count(kind) == 1
    file_of(cluster, talk)
    assert talk.turn() > 3000  # what was saved since is used


def twins(cluster: Cluster, name: str) -> tuple[Talk, Path, bytes]:
    """A conversation, its file, and what that would be if another's cache stood under its tokens."""
    right, left = Talk(cluster, name, RIGHT), Talk(cluster, name, LEFT)
    right.turn()
    theirs = file_of(cluster, right).read_bytes()
    left.turn()
    mine = file_of(cluster, left)
    return left, mine, poisoned(mine.read_bytes(), theirs)


def test_another_s_cache_in_one_s_own_file_is_not_used(cluster: Cluster) -> None:
    failed = failures(cluster)
    talk, file, poison = twins(cluster, "twin")
    file.write_bytes(poison)
    remove_bases(cluster)
    assert talk.turn() < 500
    wait_failures(cluster, failed + 1)
    assert warnings(cluster).count("checksum") == 1


def test_another_model_s_file_under_one_s_own_name_is_not_used(cluster: Cluster) -> None:
    talk, file, poison = twins(cluster, "foreign")
    name = file.name.removesuffix(".kv").rpartition(".")[0]
    foreign = file.with_name(f"another-model.{name.rpartition('.')[2]}.0123abcd.kv")
    foreign.write_bytes(poison)
    description = file.with_name(f"{name}.json")
    told = json.loads(description.read_text()) | {"file": foreign.name, "checksum": ""}
    description.write_text(json.dumps(told))
    for base in kv(cluster).glob("*.b-*"):
        base.unlink()  # it would be used, and rightly so
    assert talk.turn() < 500


def test_a_store_that_is_removed_under_a_running_worker_costs_a_prefill_and_is_made_again(cluster: Cluster) -> None:
    talk = Talk(cluster, "removed", LEFT)
    talk.turn()
    file_of(cluster, talk)
    remove_store(cluster)
    assert talk.turn() < 500

    def saved_again() -> bool:
        lose_slot(cluster, talk)
        found = talk.turn() > 5300  # more than the base, which another one's cache may give
        del talk.messages[-2:]  # the next look asks the same: nobody's window is to fill up
        return found

    # A save that met the removal keeps the worker from the next one for half a minute.
    wait_for(saved_again, "the store to be made again", timeout_s=90)


def three_turns(cluster: Cluster, name: str) -> None:
    """A conversation that loses its slot after each turn."""
    talk = Talk(cluster, name, LEFT)
    for _ in range(2):
        talk.turn()
        crowd_out(cluster)
    talk.turn()


def test_a_disk_that_fills_up_in_the_middle_of_a_save_costs_no_answer_and_leaves_nothing(
    cluster: Cluster, anew: Anew
) -> None:
    anew()
    limit = 100_000  # bytes that the engine may write to one file; the interpreter it runs in ignores the signal
    resource.prlimit(info(cluster)["engine_pid"], resource.RLIMIT_FSIZE, (limit, limit))
    three_turns(cluster, "full")
    wait_for(lambda: failures(cluster) > 0, "the failure to be told")
    assert len(warnings(cluster)) == 1
    assert list(kv(cluster).glob("*.kv")) == []


def test_a_conversation_larger_than_the_store_may_be_costs_no_answer(cluster: Cluster, anew: Anew) -> None:
    anew(store_limit_bytes=1000)
    three_turns(cluster, "large")
    assert warnings(cluster) in ([], ["limit"])
    assert list(kv(cluster).glob("*.kv")) == []


def test_a_store_that_cannot_be_written_any_more_costs_no_answer_and_one_warning(cluster: Cluster, anew: Anew) -> None:
    anew()
    remove_store(cluster)
    kv(cluster).touch()
    three_turns(cluster, "no-folder")
    wait_for(lambda: failures(cluster) > 0, "the failure to be told")
    kv(cluster).unlink()
    assert warnings(cluster) == ["folder"]
