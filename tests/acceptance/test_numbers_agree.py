"""Each figure of a request is the same wherever it is told.

Its log line is what all are held to: response headers, the client's usage, /v1/status, the page, /metrics of the API
and of the worker, `corral why` and the trace. Times are whole milliseconds, rounded by the worker once; only a worker's
own histograms of saves and restores are finer.
"""

import os
import random
import secrets
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.acceptance.conftest import running
from tests.acceptance.told import Figures, counted, grown, known, line_of, page_of, status_of, why_of
from tests.acceptance.wire import BASH, Event, assistant, body, events_of, in_order, text_of, user
from tests.doubles.cluster import Cluster
from tests.doubles.collector import Collector, collecting
from tests.doubles.services import free_port

pytestmark = pytest.mark.acceptance
STANDIN = {"bytes_per_token": 100, "prefill_tokens_per_s": 20_000, "decode_tokens_per_s": 2000}
ROUNDED_S = 0.0005001  # half a millisecond
HEADERS = {
    "x-corral-worker": "worker",
    "x-corral-slot": "slot",
    "x-corral-attempt": "attempt",
    "x-corral-queue-ms": "queue_ms",
    "x-corral-prompt-tokens": "prompt_tokens",
    "x-corral-cached-tokens": "cached_tokens",
    "x-corral-eta-ms": "eta_ms",
}
WHY = ("worker", "slot", "prompt_tokens", "cached_tokens", "source", "restored_tokens", "restore_ms")
EACH_FOR_ITSELF = ("corral_requests_", "corral_request_", "corral_first_token_")  # of an answer that several share
PLACED = "corral_placements_total"
SAYINGS = {
    "answer": "say 20 words",
    "thought": "think 5 words then say 20 words",
    "call": 'call Bash {"command": "ls"}',
    "too long": "word " * 20_000,
    "fails": "fail 500",
    "refused": "say 3 words",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """One request by chance."""

    what: str
    stream: bool
    level: int
    talk: int
    goes_on: bool
    tools: bool
    max_tokens: int


asked_by_chance = st.builds(
    Asked,
    what=st.sampled_from(["answer", "answer", "answer", "thought", "call", "too long", "fails", "refused"]),
    stream=st.booleans(),
    level=st.integers(0, 9),
    talk=st.integers(0, 2),
    goes_on=st.booleans(),
    tools=st.booleans(),
    max_tokens=st.sampled_from([5, 500]),
)


@dataclass(slots=True)
class Told:
    """What a client was told."""

    status: int
    headers: httpx.Headers
    usage: dict[str, int] = field(default_factory=dict)
    stop_reason: str | None = None
    text: str = ""


class Place:
    """A cluster of two workers, and all places where it tells figures."""

    def __init__(self, cluster: Cluster, collector: Collector, workers: Mapping[str, str]) -> None:
        self.cluster = cluster
        self.collector = collector
        self.workers = workers
        self.talks: dict[int, list[dict[str, Any]]] = {}
        self.sessions: dict[int, str] = {}
        self._before: dict[str, Figures] = {}

    def look(self) -> None:
        """Note what all counters say now."""
        self._before = {name: counted(address) for name, address in self._addresses.items()}

    def more(self, name: str) -> Figures:
        """By what the counters of the API, or of a worker, have grown; but for those of placements."""
        more = grown(self._before[name], counted(self._addresses[name]))
        return {figure: value for figure, value in more.items() if figure[0] != PLACED}

    def placed(self) -> float:
        """How many jobs were placed, for whatever reason."""
        more = grown(self._before["api"], counted(self._addresses["api"]))
        return sum(value for (name, _), value in more.items() if name == PLACED)

    @property
    def _addresses(self) -> dict[str, str]:
        return {"api": self.cluster.url, **self.workers}

    def ask(self, asked: Asked) -> Told:
        """Send it and take the whole answer."""
        talk = f"{asked.talk}{asked.tools}"
        base = words(f"base {asked.talk % 2} {asked.tools}", 4000)
        number = asked.talk * 2 + asked.tools
        if not asked.goes_on or number not in self.talks:
            self.talks[number], self.sessions[number] = [], f"session-{secrets.token_hex(6)}"
        messages = self.talks[number]
        said = user(f"{words((talk, len(messages)), 60)} {SAYINGS[asked.what]}")
        request = body(*messages, said, system=base, stream=asked.stream, max_tokens=asked.max_tokens)
        request |= {"tools": [BASH]} if asked.tools or asked.what == "call" else {}
        request |= {"temperature": 9} if asked.what == "refused" else {}
        told = self.send(request, level=asked.level, session=self.sessions[number])
        if told.stop_reason == "end_turn":
            self.talks[number] = [*messages, said, assistant(told.text)]
        return told

    def send(self, request: dict[str, Any], *, level: int = 5, session: str = "session") -> Told:
        who = {"x-claude-code-session-id": session, "x-priority": str(level)}
        with self.cluster.http.stream("POST", "/v1/messages", json=request, headers=who, timeout=60) as answer:
            if answer.headers["content-type"].startswith("text/event-stream"):
                return _of_events(answer, events_of(list(answer.iter_lines())))
            answer.read()
        return _of_message(answer)


def _of_events(answer: httpx.Response, events: list[Event]) -> Told:
    in_order(events)
    told = Told(answer.status_code, answer.headers, text=text_of(events))
    if events[-1]["type"] == "message_stop":
        told.usage, told.stop_reason = events[-2]["usage"], events[-2]["delta"]["stop_reason"]
        begun = next(event["message"]["usage"] for event in events if event["type"] == "message_start")
        assert begun == told.usage | {"output_tokens": begun["output_tokens"]}
    return told


def _of_message(answer: httpx.Response) -> Told:
    message = answer.json()
    told = Told(answer.status_code, answer.headers)
    if answer.status_code == httpx.codes.OK:
        told.usage, told.stop_reason, told.text = message["usage"], message["stop_reason"], text_of(message)
    return told


def words(seed: object, count: int) -> str:
    dice = random.Random(str(seed))
    return " ".join(str(dice.randrange(10**6)) for _ in range(count))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Two workers of two slots, with a store whose files have a price, each with a /metrics of its own."""
    ports = {name: free_port() for name in ("w1", "w2")}
    with ExitStack() as house:
        collector = house.enter_context(collecting())
        shared = {"trace_endpoint": collector.url, "metrics_port": ports["w1"]}
        options: dict[str, Any] = {"workers": 1, "slots": 2, "context_tokens": 16384, "standin": STANDIN}
        folder = tmp_path_factory.mktemp("agree") / "0"
        cluster = house.enter_context(running(folder, settings=shared, **options))
        cluster.add_worker("w2", settings={"metrics_port": ports["w2"]})
        yield Place(cluster, collector, {name: f"http://127.0.0.1:{port}" for name, port in ports.items()})


# --- what the counters have to say ------------------------------------------------------------------------------------


def of_line(line: Mapping[str, Any]) -> Figures:
    """What a log line adds to the API's counters, and nothing else."""
    at = {name: str(line.get(name, "")) for name in ("worker", "model", "kind")}
    level = {"level": str(line.get("level", ""))}
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}

    def add(name: str, value: float, **labels: str) -> None:
        if value:
            found[f"corral_{name}", frozenset(labels.items())] = value

    def timed(name: str, field: str, **labels: str) -> None:
        if field in line:
            add(f"{name}_seconds_count", 1, **labels)
            add(f"{name}_seconds_sum", line[field] / 1000, **labels)

    add("requests_total", 1, **at, **level, outcome=line["outcome"])
    timed("request", "took_ms", **at)
    timed("first_token", "first_ms", **at)
    timed("queue", "queue_ms", worker=at["worker"], **level)
    timed("prefill", "prefill_ms", **at)
    timed("decode", "decode_ms", **at)
    for part in ("prompt", "cached", "output"):
        add("tokens_total", line.get(f"{part}_tokens", 0), **at, part=part)
    if "source" in line:
        add("cache_sources_total", 1, worker=at["worker"], source=line["source"])
    if "reason" in line:
        add("refusals_total", 1, reason=line["reason"])
    add("retries_total", line.get("retries", 0), worker=at["worker"])
    add("continued_answers_total", int(line.get("continued", False)), worker=at["worker"])
    return found


def agrees(place: Place, told: Told, line: dict[str, Any]) -> None:
    """All places say the same of a request that has ended."""
    assert place.more("api") == pytest.approx(of_line(line))
    assert place.placed() == ("job" in line)
    told_alike(place, told, line)


def told_alike(place: Place, told: Told, line: dict[str, Any]) -> None:
    """All places but the counters."""
    request_id = line["request_id"]
    assert status_of(place.cluster, request_id) == page_of(place.cluster, request_id) == line
    span = place.collector.wait_request(request_id)
    assert span.fields == known(line)
    assert span.took_ms == pytest.approx(line["took_ms"], abs=200)  # begun and ended apart from it
    if told.usage:
        usage = told.usage
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == line["prompt_tokens"]
        assert (usage["cache_read_input_tokens"], usage["output_tokens"]) == (
            line["cached_tokens"],
            line["output_tokens"],
        )
        assert told.stop_reason == line["stop_reason"]
    if "miss" in line:
        why = why_of(place.cluster, request_id)
        assert {name: why[name] for name in WHY} == {name: line[name] for name in WHY}
        assert (why["cause"], why["lost_tokens"]) == (line["miss"], line["lost_tokens"])
        assert why["reuse_expected_tokens"] == line["reuse_expected_tokens"]


def headers_agree(told: Told, line: dict[str, Any]) -> None:
    for header, name in HEADERS.items():
        if told.status == httpx.codes.OK or header in told.headers:
            assert told.headers.get(header, "None") == str(line[name]), header


def worker_agrees(place: Place, line: dict[str, Any], *outcomes: str) -> None:
    """The spans of the attempts and the counters of their workers; the last one's figures are those of the line."""
    trace = place.collector.wait_request(line["request_id"]).trace
    attempts = place.collector.wait_trace(trace, *["attempt"] * len(outcomes))["attempt"]
    assert [one.fields["outcome"] for one in attempts] == list(outcomes)
    last = attempts[-1]
    own = {name: value for name, value in last.fields.items() if name != "outcome"}
    if "attempt" not in line:  # it ended before the engine had the prompt
        assert own.pop("attempt") == 1
    assert own == {name: line.get(name) for name in own}
    stages = {one.name: one.took_ms for one in place.collector.trace(trace) if one.parent == last.id}
    for name, took_ms in stages.items():
        if name != "queue" and f"{name}_ms" in line:
            assert took_ms == pytest.approx(line[f"{name}_ms"], abs=0.01), name
    more = [place.more(name) for name in place.workers]
    ended = [name for figures in more for (what, name) in figures if what == "corral_attempts_total"]
    assert sorted(dict(one)["outcome"] for one in ended) == sorted(outcomes)
    if "restore_ms" in line:  # one that failed before may have restored something, too
        restored_s = sum(figures.get(("corral_cache_restore_seconds_sum", frozenset()), 0) for figures in more)
        assert restored_s == pytest.approx(line["restore_ms"] / 1000, abs=ROUNDED_S)


# --- the tests --------------------------------------------------------------------------------------------------------


@settings(max_examples=25, phases=[Phase.generate])  # each request is one of a history: a smaller one is another
@given(asked=asked_by_chance)
def test_every_figure_of_a_request_is_the_same_wherever_it_is_told(place: Place, asked: Asked) -> None:
    place.look()
    told = place.ask(asked)
    line = line_of(place.cluster, told.headers["request-id"])
    agrees(place, told, line)
    if "job" in line:
        worker_agrees(place, line, "done" if line["outcome"] == "done" else "failed")
    if told.status == httpx.codes.OK:
        headers_agree(told, line)


def test_the_figures_of_an_answer_that_went_on_agree(place: Place) -> None:
    """But for the headers: they went out with its beginning."""
    place.look()
    request = body(user("say 60 words at 20 tokens/s"), stream=True, system=words("on", 300))
    lines: list[str] = []
    with place.cluster.http.stream("POST", "/v1/messages", json=request, timeout=60) as answer:
        for said in answer.iter_lines():
            lines.append(said)
            if lines.count("event: content_block_delta") == 5 and said.startswith("event: "):
                infos = place.cluster.status()["workers"]
                pid = next(one["engine_pid"] for one in infos if one["name"] == answer.headers["x-corral-worker"])
                os.kill(pid, signal.SIGKILL)
    events = events_of(lines)
    told = Told(answer.status_code, answer.headers, events[-2]["usage"], events[-2]["delta"]["stop_reason"])
    line = line_of(place.cluster, told.headers["request-id"])
    assert (line["attempt"], line["continued"], line["retries"]) == (2, True, 1)
    agrees(place, told, line)
    worker_agrees(place, line, "again", "done")
    place.cluster.wait_ready(2)


def test_the_figures_of_an_answer_that_was_left_agree(place: Place) -> None:
    place.look()
    request = body(user("say 60 words at 20 tokens/s"), stream=True)
    with place.cluster.http.stream("POST", "/v1/messages", json=request, timeout=60) as answer:
        for said in answer.iter_lines():
            if said == "event: content_block_delta":
                break
    told = Told(answer.status_code, answer.headers)
    line = line_of(place.cluster, told.headers["request-id"])
    assert line["outcome"] == "left"
    agrees(place, told, line)
    worker_agrees(place, line, "stopped")
    headers_agree(told, line)


def test_an_answer_that_two_share_is_told_to_both_and_counted_once(place: Place) -> None:
    place.look()
    request = body(user("say 20 words at 20 tokens/s"), temperature=0, stream=True)
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(place.send, [request] * 2))
    lines = [line_of(place.cluster, told.headers["request-id"]) for told in both]
    assert sorted(line["shared"] for line in lines) == [False, True]
    [own] = [line for line in lines if not line["shared"]]
    [joined] = [line for line in lines if line["shared"]]
    more = Counter(of_line(own))
    more.update({figure: value for figure, value in of_line(joined).items() if figure[0].startswith(EACH_FOR_ITSELF)})
    assert place.more("api") == pytest.approx({**more, ("corral_coalesced_total", frozenset()): 1})
    assert place.placed() == 1
    for told, line in zip(both, lines, strict=True):
        told_alike(place, told, line)
    worker_agrees(place, own, "done")
