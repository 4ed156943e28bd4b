"""Agents in tool loops whose every answer is known in advance.

Owns: what is asked, what must come back, and asking again as Claude Code does.
Never: a fault. What an answer is worth is the judge's.
"""

import itertools
import json
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from tests.acceptance.wire import BASH, Event, events_of
from tests.chaos.house import House
from tests.chaos.judge import Asking, Expected, Findings, said_in_vain, verdict
from tests.doubles.standin_script import DONE

Message = dict[str, Any]

LONGEST_S = 150.0  # for one asking: Claude Code would drop a stream after 300 s without content
PATIENCE_S = 300.0  # for one answer, however often it has to be asked for
MOST_PAUSE_S = 5.0
READS_S = 1.2  # what a person does between two sessions: long enough for the worker to save the one that ended
SYSTEM = " ".join(f"rule{number}" for number in range(300))  # enough for that to pay
CONTENT = ("content_block_start", "content_block_delta", "message_stop", "message_start")


@dataclass(frozen=True)
class Turn:
    """A user's text, and the answer to it; its calls are run and `then` follows."""

    asked: str
    answer: Expected
    then: Expected | None = None


def standin_turns(dice: random.Random, name: str, paces: tuple[int, int] = (10, 30)) -> Iterator[Turn]:
    """Turns for the stand-in engine: it does what it is asked, at a pace between these (tokens/s), so each has its own
    answer."""
    for number in itertools.count(1):
        words, pace = dice.randrange(8, 50), dice.randrange(*paces)
        text = " ".join(f"w{word}" for word in range(1, words + 1))
        head = f"{name}, turn {number}, at {pace} tokens/s:\n"
        command = {"command": f"run {name} {number}"}
        if dice.random() < 0.6:
            answer = Expected(text, calls=(("Bash", command),))
            yield Turn(f"{head}say {words} words then call Bash {json.dumps(command)}", answer, Expected(DONE))
        elif dice.random() < 0.5:
            yield Turn(f"{head}think then say {words} words", Expected(text, "First I think about it."))
        else:
            yield Turn(f"{head}say {words} words", Expected(text))


class Agent(threading.Thread):
    """One session after the other, each of a few turns, until `stopping`. What happened goes into `findings`."""

    def __init__(
        self,
        name: str,
        house: House,
        turns: Iterator[Turn],
        turns_each: int,
        stopping: threading.Event,
        findings: Findings,
    ) -> None:
        """Agents spread over the house's APIs by the number that their names end with."""
        super().__init__(name=name)
        api = int(name.rsplit("-", 1)[1]) % len(house.urls)
        self._api = f"api{api}"
        self._turns = turns
        self._turns_each = turns_each
        self._stopping = stopping
        self._findings = findings
        self._http = httpx.Client(base_url=house.urls[api], trust_env=False, timeout=httpx.Timeout(45, connect=3))
        self.session = 0
        self._last = Asking(name, 0.0)

    @property
    def heard_s(self) -> float:
        """When it last heard something of an answer, on the monotonic clock."""
        return max([self._last.ended_s, *self._last.heard_s[-1:]])

    def run(self) -> None:
        with self._http:
            while not self._stopping.is_set():
                self.session += 1
                history: list[Message] = []
                for turn in itertools.islice(self._turns, self._turns_each):
                    if self._stopping.is_set() or not self._take(history, turn):
                        break
                self._stopping.wait(READS_S)

    def _take(self, history: list[Message], turn: Turn) -> bool:
        """One turn with its tool loop. Says whether all of it came."""
        content = self._say(history, turn.asked, turn.answer)
        if content is None or turn.then is None:
            return content is not None
        results = [self._run(block) for block in content if block["type"] == "tool_use"]
        return self._say(history, results, turn.then) is not None

    def _say(self, history: list[Message], said: Any, expected: Expected) -> list[dict[str, Any]] | None:
        history.append({"role": "user", "content": said})
        events = self._answer(history, expected)
        if events is None:
            return None
        history.append({"role": "assistant", "content": _content(events)})
        return _content(events)

    def _run(self, call: dict[str, Any]) -> dict[str, Any]:
        self._findings.calls_run += 1
        return {"type": "tool_result", "tool_use_id": call["id"], "content": f"ran {call['input'].get('command')}"}

    def _answer(self, history: list[Message], expected: Expected) -> list[Event] | None:
        """The events of the whole answer, asked for until it comes; None when it never does or is not right."""
        give_up_s = time.monotonic() + PATIENCE_S
        for tries in itertools.count(1):
            asking = self._ask(history, f"{self.name}/{self.session}/{len(history)} try {tries}")
            self._findings.askings.append(asking)
            if asking.outcome == "whole":
                return self._judged(asking, expected)
            if asking.outcome in ("told", "broken") and (false := said_in_vain(asking, expected)):
                self._findings.wrong.append(false)
            if time.monotonic() > give_up_s:
                break
            time.sleep(min(MOST_PAUSE_S, 0.3 * 2 ** min(tries, 4)))
        self._findings.lost.append(f"{asking.who}: never answered; last: {asking.outcome} {asking.detail}")
        return None

    def _judged(self, asking: Asking, expected: Expected) -> list[Event] | None:
        self._findings.answered += 1
        if false := verdict(asking, expected):
            self._findings.wrong.append(false)
            return None
        return asking.events

    def _ask(self, history: list[Message], who: str) -> Asking:
        asking = self._last = Asking(who, time.monotonic(), api=self._api)
        body = {"model": "any", "max_tokens": 4000, "temperature": 0, "stream": True}
        body |= {"system": SYSTEM, "messages": history, "tools": [BASH]}
        headers = {"x-claude-code-session-id": f"{self.name}-{self.session}", "x-agent-id": self.name}
        try:
            with self._http.stream("POST", "/v1/messages", json=body, headers=headers) as answer:
                if answer.status_code == httpx.codes.OK:
                    asking.detail = answer.headers.get("request-id", "")
                    _listen(answer, asking)
                else:
                    asking.outcome, asking.detail = "refused", f"{answer.status_code} {answer.read()[:300]!r}"
        except httpx.ConnectError as error:
            asking.outcome, asking.detail = "refused", str(error)
        except httpx.TransportError as error:
            asking.detail += f" {type(error).__name__}: {error}"
        asking.ended_s = time.monotonic()
        return asking


def _listen(answer: httpx.Response, asking: Asking) -> None:
    lines: list[str] = []
    try:
        for line in answer.iter_lines():
            lines.append(line)
            if line.startswith("event: ") and line.removeprefix("event: ") in CONTENT:
                asking.heard_s.append(time.monotonic())
            if time.monotonic() - asking.began_s > LONGEST_S:
                asking.detail += f" no end after {LONGEST_S:.0f} s"
                break
    finally:
        asking.events = events_of(lines if not lines or not lines[-1] else lines[:-1])
    last = asking.events[-1] if asking.events else {"type": ""}
    if last["type"] == "error":
        asking.detail += f" {last['error']}"
    asking.outcome = {"message_stop": "whole", "error": "told"}.get(last["type"], "broken")  # type: ignore[assignment]


def _content(events: list[Event]) -> list[dict[str, Any]]:
    """The blocks of an answer as they stand in history."""
    blocks: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(dict(event["content_block"]))
        if event["type"] == "content_block_delta":
            for name, value in event["delta"].items():
                if name in ("text", "thinking", "signature"):
                    blocks[-1][name] = blocks[-1].get(name, "") + value
                if name == "partial_json":
                    blocks[-1]["json"] = blocks[-1].get("json", "") + value
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block.pop("json", "") or "{}")
    return blocks
