"""Our side of the talk with llama-server, on the real one."""

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings

from infra.errors import Cancelled, EngineLost, EngineRefused, PromptTooLong
from scheduler.contract import (
    Block,
    GenerationRequest,
    Message,
    StopReason,
    TextBlock,
    TextDelta,
    Thinking,
    ThinkingBlock,
    ThinkingDelta,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResultBlock,
    ToolUseBlock,
)
from tests.doubles import scripted_model as scripts
from tests.doubles.engine import EngineProcess
from tests.doubles.scripted_model import Script
from tests.doubles.services import wait_for
from tests.unit.workers.llama.test_grammar import schemas
from workers.llama.client import Deadlines, End, EngineClient, Generation, Prompt
from workers.llama.grammar import safe_schema
from workers.llama.render import answer_rules, render

pytestmark = pytest.mark.acceptance

WINDOW = 16384
DEADLINES = Deadlines(first_token_s=60, between_tokens_s=60, answer_s=120)
LONG = scripts.long_text(1500)
SCHEMA = {
    "type": "object",
    "properties": {"command": {"type": "string"}, "description": {"type": "string"}},
    "required": ["command"],
}
TOOLS = (Tool(name="Bash", input_schema=SCHEMA), Tool(name="Read", input_schema={"type": "object", "properties": {}}))


class Speaker:
    """A running engine and our client to it."""

    def __init__(self, engine: EngineProcess) -> None:
        self.engine = engine
        self.client = EngineClient(engine.url, "engine-key", DEADLINES)

    def body(self, request: GenerationRequest, slot: int = 0) -> dict[str, Any]:
        return render(request, slot=slot, stop=(), vision=False, context_tokens=WINDOW)

    def generation(self, request: GenerationRequest, slot: int = 0) -> Generation:
        body = orjson.dumps(self.body(request, slot))
        return self.client.generate(body, answer_rules(request, context_tokens=WINDOW))

    def answer(self, request: GenerationRequest, slot: int = 0) -> tuple[Prompt, list[Any], End]:
        with self.generation(request, slot) as generation:
            prompt, *deltas, end = list(generation)
        assert isinstance(prompt, Prompt)
        assert isinstance(end, End)
        return prompt, deltas, end

    def is_free(self, slot: int = 0) -> bool:
        return not self.engine.http.get("/slots").json()[slot]["is_processing"]


Speakers = Callable[[Script], Speaker]


@pytest.fixture(scope="module")
def speakers(tmp_path_factory: pytest.TempPathFactory, model_path: Callable[[Script], Path]) -> Iterator[Speakers]:
    """A function from a script to an engine that plays it; each started once."""
    running: dict[str, Speaker] = {}

    def start(script: Script) -> Speaker:
        if script.name not in running:
            folder = tmp_path_factory.mktemp(script.name)
            engine = EngineProcess(folder, model_path(script), context_tokens=WINDOW).__enter__()
            running[script.name] = Speaker(engine)
        return running[script.name]

    yield start
    for speaker in running.values():
        speaker.client.close()
        speaker.engine.__exit__(None, None, None)


def user(*blocks: Block | str) -> Message:
    return Message(role="user", content=tuple(TextBlock(text=b) if isinstance(b, str) else b for b in blocks))


def assistant(*blocks: Block | str) -> Message:
    return Message(role="assistant", content=user(*blocks).content)


def asked(*messages: Message, **changes: Any) -> GenerationRequest:
    fields = {"model": "m", "system": "You help.", "max_tokens": 2000, "temperature": 0.0, **changes}
    return GenerationRequest(messages=messages or (user("Please begin."),), **fields)


def spoken(deltas: list[Any]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


def test_a_text_arrives_whole_with_true_counts(speakers: Speakers) -> None:
    prompt, deltas, end = speakers(LONG).answer(asked())

    assert spoken(deltas) == LONG.answer
    assert (end.stop_reason, end.prompt_tokens) == (StopReason.END_TURN, prompt.total_tokens)
    assert end.output_tokens == len(LONG.answer.split()) + 1


def test_a_count_is_the_prompt_that_the_engine_then_reports(speakers: Speakers) -> None:
    speaker = speakers(LONG)
    for request in (asked(tools=TOOLS), asked(user("hi"), assistant("step0001"))):
        assert speaker.client.count(speaker.body(request)) == speaker.answer(request)[0].total_tokens


def test_the_next_turn_finds_the_conversation_in_its_slot(speakers: Speakers) -> None:
    speaker = speakers(LONG)
    first, deltas, _ = speaker.answer(asked(max_tokens=50), slot=1)
    second, _, _ = speaker.answer(
        asked(user("Please begin."), assistant(spoken(deltas)), user("Go on."), max_tokens=1), slot=1
    )

    assert second.cached_tokens >= first.total_tokens + 49


def test_a_given_beginning_is_continued_and_not_repeated(speakers: Speakers) -> None:
    words = LONG.answer.split(" ")
    beginning, rest = " ".join(words[:100]), " " + " ".join(words[100:])

    _, deltas, _ = speakers(LONG).answer(asked(user("Please begin."), assistant(beginning)))

    assert spoken(deltas) == rest


def test_a_stop_sequence_is_told_and_the_counts_are_right(speakers: Speakers) -> None:
    _, deltas, end = speakers(LONG).answer(asked(stop_sequences=("0007", "p0005 st")))

    assert spoken(deltas) == "step0001 step0002 step0003 step0004 ste"
    assert (end.stop_reason, end.stop_sequence, end.output_tokens) == (StopReason.STOP_SEQUENCE, "p0005 st", 6)


def test_the_limit_and_the_window_are_told_apart(speakers: Speakers) -> None:
    assert speakers(LONG).answer(asked(max_tokens=5))[2].stop_reason is StopReason.MAX_TOKENS

    prompt, _, end = speakers(LONG).answer(asked(user("ab " * (WINDOW - 200)), max_tokens=64000))
    assert end.stop_reason is StopReason.WINDOW
    assert prompt.total_tokens + end.output_tokens == WINDOW


def test_a_prompt_that_does_not_fit_is_refused_with_its_numbers(speakers: Speakers) -> None:
    with pytest.raises(PromptTooLong) as caught:
        speakers(LONG).answer(asked(user("ab " * WINDOW)))

    assert caught.value.maximum_tokens == WINDOW
    assert caught.value.prompt_tokens > WINDOW


def called(deltas: list[Any]) -> list[ToolCall]:
    return [delta for delta in deltas if isinstance(delta, ToolCall)]


def after(calls: list[ToolCall]) -> GenerationRequest:
    """The turn that brings the results of `calls`."""
    used = [ToolUseBlock(id=call.id, name=call.name, input=orjson.loads(call.arguments)) for call in calls]
    results = [ToolResultBlock(tool_use_id=call.id, content=(TextBlock(text="ok"),)) for call in calls]
    return asked(user("Please begin."), assistant(*used), user(*results), tools=TOOLS)


def test_a_call_comes_whole_and_its_replay_hits_the_cache(speakers: Speakers) -> None:
    speaker = speakers(scripts.TOOL_THEN_TEXT)
    first, deltas, first_end = speaker.answer(asked(tools=TOOLS))
    assert first_end.stop_reason is StopReason.TOOL_USE

    second, deltas, second_end = speaker.answer(after(called(deltas)))

    assert (spoken(deltas), second_end.stop_reason) == (scripts.TOOL_THEN_TEXT.answer, StopReason.END_TURN)
    # The last token of an answer is never evaluated.
    assert second.cached_tokens >= first.total_tokens + first_end.output_tokens - 2


def test_two_calls_are_two_whole_calls_and_their_results_end_the_loop(speakers: Speakers) -> None:
    speaker = speakers(scripts.TWO_PARALLEL_CALLS)
    _, deltas, end = speaker.answer(asked(tools=TOOLS))
    calls = called(deltas)
    assert [orjson.loads(call.arguments)["command"] for call in calls] == ["echo left", "echo right"]
    assert end.stop_reason is StopReason.TOOL_USE

    _, deltas, end = speaker.answer(after(calls))

    assert (spoken(deltas), end.stop_reason) == (scripts.TWO_PARALLEL_CALLS.answer, StopReason.END_TURN)


def test_without_parallel_calls_there_is_one(speakers: Speakers) -> None:
    request = asked(tools=TOOLS, tool_choice=ToolChoice(parallel=False), max_tokens=40)
    _, deltas, _ = speakers(scripts.TWO_PARALLEL_CALLS).answer(request)

    assert len(called(deltas)) == 1


def test_every_cut_of_a_call_gives_a_whole_call_or_none(speakers: Speakers) -> None:
    speaker = speakers(scripts.TWO_PARALLEL_CALLS)
    full = speaker.answer(asked(tools=TOOLS))[2].output_tokens
    for limit in range(1, full):
        _, deltas, end = speaker.answer(asked(tools=TOOLS, max_tokens=limit))
        calls = called(deltas)
        assert all(isinstance(orjson.loads(call.arguments), dict) for call in calls)
        assert end.output_tokens == limit
        assert calls or end.stop_reason is StopReason.MAX_TOKENS


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        (ToolChoice(mode="any"), {"Bash"}),
        (ToolChoice(mode="none"), set()),
        (ToolChoice(mode="tool", name="Read"), {"Read"}),
    ],
    ids=["any", "none", "by name"],
)
def test_a_choice_of_tools_holds_and_leaves_the_prompt_as_it_is(
    speakers: Speakers, choice: ToolChoice, names: set[str]
) -> None:
    speaker = speakers(scripts.TOOL_THEN_TEXT)  # which wants to call Bash, whatever it is told
    usual, _, _ = speaker.answer(asked(tools=TOOLS, max_tokens=1))
    request = asked(tools=TOOLS, tool_choice=choice, max_tokens=80)
    prompt, deltas, _ = speaker.answer(request)

    assert speaker.client.count(speaker.body(request)) == usual.total_tokens
    assert prompt == Prompt(usual.total_tokens, usual.total_tokens - 1)
    assert {call.name for call in called(deltas)} == names
    if choice.mode == "none":
        assert spoken(deltas) == scripts.TOOL_THEN_TEXT.answer


def test_thinking_is_apart_and_its_replay_hits_the_cache(speakers: Speakers) -> None:
    speaker = speakers(scripts.THINKING_THEN_TEXT)
    first, deltas, end = speaker.answer(asked(thinking=Thinking(enabled=True, budget_tokens=1000)))
    thought = "".join(delta.text for delta in deltas if isinstance(delta, ThinkingDelta))

    assert thought.strip() == "First I weigh it up."
    assert spoken(deltas) == "The answer is forty-two."

    replayed = assistant(ThinkingBlock(thinking=thought), spoken(deltas))
    second, _, _ = speaker.answer(asked(user("Please begin."), replayed, user("And now?"), max_tokens=1))
    assert second.cached_tokens >= first.total_tokens + end.output_tokens - 2


def read_and_cancel_at(generation: Generation, moment: type[Prompt] | type[TextDelta] | None) -> None:
    """Reads to the end; cancels from another thread before the first event, or at each one of the type `moment`."""
    if moment is None:
        generation.cancel()
    for event in generation:
        if isinstance(event, moment or Prompt):
            canceller = threading.Thread(target=generation.cancel)
            canceller.start()
            canceller.join()


def cancel_at(generation: Generation, moment: type[Prompt] | type[TextDelta] | None) -> None:
    with generation, pytest.raises(Cancelled):
        read_and_cancel_at(generation, moment)


@pytest.mark.parametrize("moment", [None, Prompt, TextDelta], ids=["before", "in prefill", "while generating"])
def test_a_cancelled_answer_frees_its_slot(speakers: Speakers, moment: type[Prompt] | type[TextDelta] | None) -> None:
    speaker = speakers(LONG)
    many_words = user("ab " * (WINDOW // 2)) if moment is Prompt else user("Please begin.")

    cancel_at(speaker.generation(asked(many_words)), moment)

    wait_for(speaker.is_free, "the slot to be free", timeout_s=5)


def test_a_slot_is_good_for_the_next_answer_right_after_a_cancel(speakers: Speakers) -> None:
    speaker = speakers(LONG)
    for _ in range(20):
        cancel_at(speaker.generation(asked()), TextDelta)
        assert speaker.answer(asked(max_tokens=3))[2].output_tokens == 3


def test_two_slots_answer_at_once(speakers: Speakers) -> None:
    speaker = speakers(LONG)
    texts: dict[int, str] = {}
    both_started = threading.Barrier(2)

    def listen(slot: int) -> None:
        with speaker.generation(asked(), slot) as generation:
            events = iter(generation)
            next(events)
            both_started.wait(30)
            texts[slot] = spoken(list(events))

    listeners = [threading.Thread(target=listen, args=(slot,)) for slot in (0, 1)]
    for listener in listeners:
        listener.start()
    for listener in listeners:
        listener.join()

    assert texts == {0: LONG.answer, 1: LONG.answer}


def test_a_wrong_key_is_refused_and_a_dead_engine_is_lost(tmp_path: Path, model_path: Callable[[Script], Path]) -> None:
    with EngineProcess(tmp_path, model_path(LONG)) as engine:
        stranger = EngineClient(engine.url, "wrong", DEADLINES)
        with stranger.generate(b"{}", answer_rules(asked(), context_tokens=1)) as generation:
            with pytest.raises(EngineRefused) as caught:
                list(generation)
            assert caught.value.status == 401
        stranger.close()

        speaker = Speaker(engine)
        with speaker.generation(asked()) as generation:
            events = iter(generation)
            next(events)
            engine.child.stop(signal.SIGKILL)
            with pytest.raises(EngineLost):
                list(events)
        speaker.client.close()


# --- schemas ------------------------------------------------------------------------------------------------------


def with_property(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, "required": ["a"]}


NASTY = [
    *(None, True, {}, {"type": "string"}, {"$ref": "#"}, {"properties": 5}, {"allOf": [{"$ref": "#"}]}),
    {"oneOf": [with_property({"const": 1}), with_property({"const": 2})]},
    {"properties": {"$ref": {"type": "string"}, "$defs": {"type": "string"}, "": {}, 'a]b\\"^-': {}, "é\x00": {}}},
    {"properties": {"a]": {}, "x-y": {}}, "additionalProperties": True},
    {"properties": {"a": {}, "b_c": {}}, "additionalProperties": {"type": "string"}},
    {"properties": {f"p{number}": {"type": "string", "maxLength": 256} for number in range(200)}},
    {"$defs": {"n": {"properties": {"c": {"$ref": "#/$defs/n"}}}}, "properties": {"a": {"$ref": "#/$defs/n"}}},
    *map(
        with_property,
        [
            *(False, {"not": {}}, {"$ref": "http://x/y"}, {"$ref": "#/nope"}, {"type": "file"}, {"format": "uuid"}),
            *({"type": "string", "pattern": one} for one in ("^\\d{3}$", "(?=x)", "^[a-z0-9_-]+$", "^a{2,5}[A-Z]$")),
            *({"type": "string", "maxLength": one} for one in (0, -1, 256, 10**9)),
            *({"type": "string", "format": one} for one in ("uri", "date-time", "time", 5)),
            *({"type": "integer", "minimum": one} for one in (-7, 0, 10**15, 10**30, True)),
            *({"type": "integer", "maximum": one, "minimum": -3} for one in (-5, -3, 0, 123456)),
            *({"enum": one} for one in ([], [1, "a", None, True, 1.5], [{"$ref": "x"}])),
            {"type": ["string", "array", "integer", "null"], "items": {"type": "string"}, "minimum": 3},
            {"type": "array", "minItems": 256, "maxItems": 256, "items": {"type": "string", "maxLength": 256}},
            {"type": "array", "maxItems": 10**6, "items": {}},
            {"type": "object", "patternProperties": {"^x": {}}, "propertyNames": {"pattern": "^x"}},
            {"if": {"const": 1}, "then": {"const": 2}},
        ],
    ),
]


def engine_takes(speaker: Speaker, schema: Any) -> None:
    """The schema is in the grammar at once, because a call is required. Raises EngineRefused."""
    tool = Tool(name="t", input_schema=schema if isinstance(schema, dict) else safe_schema(schema))
    speaker.answer(asked(tools=(tool,), tool_choice=ToolChoice(mode="any"), max_tokens=1))


def test_the_engine_takes_every_nasty_schema(speakers: Speakers) -> None:
    for schema in NASTY:
        engine_takes(speakers(LONG), schema)


def test_the_engine_takes_any_schema(speakers: Speakers) -> None:
    speaker = speakers(LONG)

    @settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
    @given(schemas)
    def any_schema(schema: Any) -> None:
        engine_takes(speaker, schema)

    any_schema()


def test_the_engine_would_refuse_a_schema_as_it_is(speakers: Speakers) -> None:
    function = {"name": "t", "description": "", "parameters": with_property({"$ref": "http://x/y"})}
    body = {**speakers(LONG).body(asked()), "tools": [{"type": "function", "function": function}]}
    answer = speakers(LONG).client.generate(orjson.dumps(body), answer_rules(asked(), context_tokens=1))
    with answer, pytest.raises(EngineRefused) as caught:
        list(answer)

    assert caught.value.status == 400
