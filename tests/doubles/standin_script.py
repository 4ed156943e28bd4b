"""What the stand-in engine says: a prompt's last user text, read as an instruction.

Owns: the instructions, and the words and faults that each one means. Pure. The standard library only.
Never: a clock, a socket, a slot.

The last instruction in the last user text counts; once a tool result follows it, the answer is DONE.

    say N words                      w1 w2 ... wN; goes on where a trailing assistant message was cut
    say "TEXT"                       this text
    think then say N words           reasoning first
    call NAME {json}                 one tool call; several lines of it: parallel calls
    say N words then call NAME {..}  text, then the call
    bad json call NAME               a call whose arguments are no JSON
    garbage call name                a call of a tool that nobody declared
    empty                            nothing at all
    split emoji                      emoji of several code points over several deltas, bytes torn over TCP writes
    fail STATUS                      this HTTP status, before any byte of a stream
    fail after N tokens              an error in mid-stream
    hang                             the prompt is taken, then silence;  hang at once: not even headers
    freeze after N tokens            the loop stands still for good, for all; only /health answers (0: in the prefill)
    repeat WORD                      this word until the limit
    die after N tokens               the process is gone
    exhaust the card after N tokens  the process aborts, with what it says when the card's memory is full
    drop after N tokens              only this connection is gone
    slow start Ns                    N seconds of silence before the first token (with any other instruction)
    leaking N MB                     so much memory is never given back (with any other instruction)
    at N tokens/s                    this request's own decode speed (with any other instruction)
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

DONE = "All done: the tool result is here."
DEFAULT = "say 8 words"
END = "\n<|end|>\n"  # a word of its own, so that the last word of an answer stays the same in history
EMOJI = ["family: ", "👩", "\u200d👩", "\u200d👧", " flag: ", "🇨", "🇭", " e\u0301"]

JsonObject = dict[str, Any]
Answerer = Callable[[list[re.Match[str]]], "Plan"]


@dataclass(frozen=True)
class Call:
    """A tool call; `arguments` is sent as it stands, valid or not."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Plan:
    """One answer: its tokens in order of sending, and what goes wrong on the way."""

    reasoning: tuple[str, ...] = ()
    content: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    given: str = ""
    torn_bytes: bool = False
    fail_status: int = 0
    fail_after: int = -1
    die_after: int = -1
    abort_after: int = -1
    drop_after: int = -1
    freeze_after: int = -1
    repeat: bool = False
    hang: bool = False
    hang_at_once: bool = False
    start_delay_s: float = 0
    tokens_per_s: float = 0
    leak_bytes: int = 0


def plan(body: JsonObject) -> Plan:
    """The answer to a chat completion request."""
    messages = body["messages"]
    given = text_of(messages[-1]) if messages[-1].get("role") == "assistant" else ""
    instruction = _instruction(messages)
    answer = _with_pace(_answer(instruction), instruction)
    if not body.get("tools") or body.get("tool_choice") == "none":
        answer = replace(answer, calls=())
    return _go_on(answer, given) if given else answer


def text_of(message: JsonObject) -> str:
    """The text of a message, whether its content is a string or parts."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content if part.get("type") == "text")


def render(body: JsonObject, *, generation_prompt: bool = True) -> str:
    """The prompt as the stand-in's template writes it: history comes out as the very words that were generated."""
    parts = []
    if body.get("tools"):
        tools = "\n".join(json.dumps(tool) for tool in body["tools"])
        parts.append(f"<|tools|>\n{tools}{END}")
    messages = body["messages"]
    parts.extend(_render_message(message) + END for message in messages[:-1])
    last = messages[-1]
    if last.get("role") == "assistant":  # a given beginning: the turn stays open
        return "".join([*parts, _render_message(last)])
    opening = "<|assistant|>\n" if generation_prompt else ""
    return "".join([*parts, _render_message(last), END, opening])


def render_answer(reasoning: str, content: str, calls: list[Call]) -> str:
    """An answer's words, the same whether they were just generated or come back in history."""
    thought = f"<think>{reasoning}</think>\n" if reasoning else ""
    return thought + content + "".join(f"\n<tool_call>{call.name} {_canonical(call.arguments)}" for call in calls)


def words(text: str) -> list[str]:
    """The stand-in's tokens: words, each with the blanks before it."""
    return re.findall(r"\s*\S+", text)


def _render_message(message: JsonObject) -> str:
    calls = [Call(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or []]
    said = render_answer(message.get("reasoning_content") or "", text_of(message), calls)
    return f"<|{message.get('role')}|>\n{said}"


def _canonical(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments))
    except (TypeError, ValueError):
        return str(arguments)


def _instruction(messages: list[JsonObject]) -> str:
    users = [number for number, message in enumerate(messages) if message.get("role") == "user"]
    if not users:
        return DEFAULT
    if any(message.get("role") == "tool" for message in messages[users[-1] :]):
        return f'say "{DONE}"'
    return text_of(messages[users[-1]])


def _answer(text: str) -> Plan:
    for pattern, make in _INSTRUCTIONS:
        found = list(re.finditer(pattern, text))
        if found:
            return make(found)
    return Plan(content=_numbered(8))


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(f"w{number}" if number == 1 else f" w{number}" for number in range(1, count + 1))


def _calls(found: list[re.Match[str]]) -> Plan:
    calls = tuple(Call(match["name"], match["json"]) for match in found)
    spoken = next((match["count"] for match in found if match["count"]), None)
    return Plan(content=_numbered(int(spoken)) if spoken else (), calls=calls)


def _thought(found: list[re.Match[str]]) -> Plan:
    return Plan(reasoning=("First", " I", " think", " about", " it."), content=_numbered(int(found[-1][1] or 8)))


def _faulty(field: str) -> Answerer:
    return lambda found: Plan(**{"content": _numbered(1000), field: int(found[-1][1])})  # type: ignore[arg-type]


# In this order: the first kind that the text holds decides, and within it the last one (calls: all of them).
_INSTRUCTIONS: list[tuple[str, Answerer]] = [
    (r"fail after (\d+) tokens?", _faulty("fail_after")),
    (r"die after (\d+) tokens?", _faulty("die_after")),
    (r"exhaust the card after (\d+) tokens?", _faulty("abort_after")),
    (r"drop after (\d+) tokens?", _faulty("drop_after")),
    (r"freeze after (\d+) tokens?", _faulty("freeze_after")),
    (r"repeat (\w+)", lambda found: Plan(content=(f" {found[-1][1]}",), repeat=True)),
    (r"fail (\d{3})", _faulty("fail_status")),
    (r"hang at once", lambda _: Plan(hang_at_once=True)),
    (r"\bhang\b", lambda _: Plan(hang=True)),
    (r"bad json call (\w+)", lambda found: Plan(calls=(Call(found[-1][1], '{"command": "ls'),))),
    (r"garbage call name", lambda _: Plan(calls=(Call("no such tool!", "{}"),))),
    (r"(?m)(?:say (?P<count>\d+) words? then )?call (?P<name>\w+) (?P<json>\{.*\})\s*$", _calls),
    (r"think then say(?: (\d+) words?)?", _thought),
    (r'say "([^"]*)"', lambda found: Plan(content=tuple(words(found[-1][1])))),
    (r"say (\d+) words?", lambda found: Plan(content=_numbered(int(found[-1][1])))),
    (r"split emoji", lambda _: Plan(content=tuple(EMOJI), torn_bytes=True)),
    (r"(?m)^\s*empty\s*$", lambda _: Plan()),
]


def _with_pace(answer: Plan, text: str) -> Plan:
    delay = re.search(r"slow start ([\d.]+) ?s", text)
    leak = re.search(r"leaking (\d+) MB", text)
    speed = re.search(r"at ([\d.]+) tokens?/s", text)
    return replace(
        answer,
        start_delay_s=float(delay[1]) if delay else 0.0,
        tokens_per_s=float(speed[1]) if speed else 0.0,
        leak_bytes=int(leak[1]) * 10**6 if leak else 0,
    )


def _go_on(answer: Plan, given: str) -> Plan:
    """The rest of the answer after the part that was given back; an unknown beginning changes nothing."""
    whole = "".join(answer.content)
    if not whole.startswith(given):
        return replace(answer, given=given)
    return replace(answer, given=given, reasoning=(), content=tuple(words(whole[len(given) :])))
