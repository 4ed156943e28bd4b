"""One suite over the stand-in engine and the real one: what a worker reads of them has the same shape."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest

from tests.doubles.engine import EngineProcess
from tests.doubles.scripted_model import TOOL_THEN_TEXT, Script

pytestmark = pytest.mark.acceptance

BASH = {
    "type": "function",
    "function": {
        "name": "Bash",
        "description": "run",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}, "description": {"type": "string"}},
            "required": ["command"],
        },
    },
}
CALL_PROMPT = {"role": "user", "content": 'call Bash {"command": "echo tool-ran"}'}


@pytest.fixture(scope="module", params=["standin", "embedded"])
def engine(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    model_path: Callable[[Script], Path],
) -> Iterator[EngineProcess]:
    folder = tmp_path_factory.mktemp("engine")
    model = model_path(TOOL_THEN_TEXT)
    store = folder / "kv"
    store.mkdir()
    options: dict[str, Any] = {"slots": 2, "context_tokens": 4096, "key": "sekrit", "store": store}
    with EngineProcess(folder, model, kind=request.param, standin={"bytes_per_token": 128}, **options) as running:
        yield running


def shape(value: object) -> Any:
    """A value with every leaf replaced by its kind."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value]
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def stream(engine: EngineProcess, **fields: Any) -> list[Any]:
    body = {"id_slot": 1, "stream": True, "return_progress": True, "max_tokens": 50, "messages": [CALL_PROMPT]}
    body |= {"stream_options": {"include_usage": True}, "tools": [BASH], **fields}
    with engine.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        data = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
    assert data.pop() == "[DONE]"
    return [json.loads(item) for item in data]


def test_health_is_open_and_all_else_is_guarded(engine: EngineProcess) -> None:
    bare = httpx.Client(base_url=engine.url, trust_env=False)
    with bare:
        assert bare.get("/health").json() == {"status": "ok"}
        refused = bare.get("/props")
    assert refused.status_code == 401
    assert shape(refused.json()) == {"error": {"message": "str", "type": "str", "code": "number"}}


def test_props_tell_the_window_and_the_slots(engine: EngineProcess) -> None:
    props = engine.http.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 4096
    assert props["total_slots"] == 2
    assert props["modalities"]["vision"] is False
    assert isinstance(props["chat_template"], str)
    assert isinstance(props["build_info"], str)


def test_each_slot_tells_whether_it_works(engine: EngineProcess) -> None:
    stream(engine)
    slots = engine.http.get("/slots").json()
    assert [(slot["id"], slot["n_ctx"], slot["is_processing"]) for slot in slots] == [
        (0, 4096, False),
        (1, 4096, False),
    ]
    assert slots[1]["n_prompt_tokens"] > 0


def test_counting_routes_answer(engine: EngineProcess) -> None:
    body = {"messages": [{"role": "user", "content": "hi there"}]}
    assert shape(engine.http.post("/tokenize", json={"content": "hi there"}).json())["tokens"][0] == "number"
    assert "hi there" in engine.http.post("/apply-template", json=body).json()["prompt"]
    counted = engine.http.post("/v1/chat/completions/input_tokens", json=body).json()
    assert shape(counted) == {"input_tokens": "number", "object": "str"}


def test_a_stream_goes_from_progress_to_usage(engine: EngineProcess) -> None:
    chunks = stream(engine)
    first, last = chunks[0], chunks[-1]
    assert set(first["prompt_progress"]) == {"total", "cache", "processed", "time_ms"}
    assert first["prompt_progress"]["processed"] == first["prompt_progress"]["cache"]
    assert first["choices"] == [{"finish_reason": None, "index": 0, "delta": {"role": "assistant", "content": None}}]
    assert chunks[-2]["choices"] == [{"finish_reason": "tool_calls", "index": 0, "delta": {}}]
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens"] == first["prompt_progress"]["total"]
    assert last["timings"]["cache_n"] + last["timings"]["prompt_n"] == last["usage"]["prompt_tokens"]
    assert last["timings"]["cache_n"] == last["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_a_tool_call_is_named_once_and_its_arguments_add_up(engine: EngineProcess) -> None:
    deltas = [chunk["choices"][0]["delta"] for chunk in stream(engine) if chunk["choices"]]
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert shape(calls[0]) == {
        "index": "number",
        "id": "str",
        "type": "str",
        "function": {"name": "str", "arguments": "str"},
    }
    assert calls[0]["function"]["name"] == "Bash"
    assert "command" in json.loads("".join(call["function"]["arguments"] for call in calls))


def test_the_same_prompt_again_is_found_but_for_one_token(engine: EngineProcess) -> None:
    stream(engine)
    usage = stream(engine)[-1]["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1


def test_a_whole_answer_carries_usage_and_timings(engine: EngineProcess) -> None:
    body = {"messages": [CALL_PROMPT], "tools": [BASH], "max_tokens": 50}
    answer = engine.http.post("/v1/chat/completions", json=body).json()
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "Bash"
    assert {"usage", "timings", "model", "id", "created"} <= set(answer)


def test_max_tokens_end_an_answer_with_length(engine: EngineProcess) -> None:
    chunks = stream(engine, max_tokens=1, tools=[], messages=[{"role": "user", "content": "say 5 words"}])
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["usage"]["completion_tokens"] == 1


def test_overflow_is_said_with_both_numbers(engine: EngineProcess) -> None:
    body = {"messages": [{"role": "user", "content": "word " * 5000}], "stream": True}
    answer = engine.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "exceed_context_size_error"
    assert error["n_prompt_tokens"] > error["n_ctx"] == 4096


@pytest.mark.parametrize("content", ['{"messages": "x"}', '{"messages'])
def test_a_malformed_body_is_refused(engine: EngineProcess, content: str) -> None:
    answer = engine.http.post("/v1/chat/completions", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert shape(answer.json()) == {"error": {"code": "number", "message": "str", "type": "str"}}
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_an_unknown_route_is_not_found(engine: EngineProcess) -> None:
    answer = engine.http.get("/nothing")
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")


NUMBERS = " ".join(str(number) for number in range(1000, 1300))


def prefilled(engine: EngineProcess, end: str, slot: int = 0) -> dict[str, Any]:
    """A bare prompt of many numbers and this end."""
    body = {"prompt": f"{NUMBERS} {end}", "n_predict": 1, "id_slot": slot, "cache_prompt": True}
    answer = engine.http.post("/completion", json=body)
    assert answer.status_code == 200
    return dict(answer.json())


def act(engine: EngineProcess, action: str, slot: object = 0, **body: object) -> httpx.Response:
    return engine.http.post(f"/slots/{slot}?action={action}", json=body)


def test_a_bare_prompt_tells_what_it_reused(engine: EngineProcess) -> None:
    first, again = prefilled(engine, "alpha"), prefilled(engine, "alpha")
    names = {"content", "id_slot", "stop", "timings", "tokens_cached", "tokens_evaluated", "tokens_predicted"}
    assert names <= set(again)
    times = {"cache_n", "prompt_n", "prompt_ms", "predicted_n", "predicted_ms"}
    assert {shape(again["timings"][name]) for name in times} == {"number"}
    assert again["timings"]["prompt_n"] == 1
    assert again["timings"]["cache_n"] + 1 == first["timings"]["cache_n"] + first["timings"]["prompt_n"]


def test_a_slot_is_saved_and_another_goes_on_from_the_file(engine: EngineProcess) -> None:
    whole = prefilled(engine, "alpha")["tokens_evaluated"]
    saved = act(engine, "save", filename="a.kv").json()
    assert shape(saved) == {
        "id_slot": "number",
        "filename": "str",
        "n_saved": "number",
        "n_written": "number",
        "timings": {"save_ms": "number"},
    }
    assert saved["n_saved"] == whole
    assert (engine.folder / "kv" / "a.kv").stat().st_size == saved["n_written"] > 128 * whole
    act(engine, "erase", 1)
    restored = act(engine, "restore", 1, filename="a.kv").json()
    assert set(restored) == {"id_slot", "filename", "n_restored", "n_read", "timings"}
    assert (restored["n_restored"], restored["n_read"]) == (whole, saved["n_written"])
    assert restored["timings"]["restore_ms"] > 0
    assert prefilled(engine, "omega", slot=1)["timings"]["cache_n"] >= 0.9 * whole


def test_an_empty_slot_is_saved_as_well(engine: EngineProcess) -> None:
    act(engine, "erase")
    saved = act(engine, "save", filename="empty.kv")
    assert (saved.status_code, saved.json()["n_saved"]) == (200, 0)


def test_an_erased_slot_holds_nothing(engine: EngineProcess) -> None:
    whole = prefilled(engine, "alpha")["tokens_evaluated"]
    assert act(engine, "erase").json() == {"id_slot": 0, "n_erased": whole}
    assert prefilled(engine, "alpha")["timings"]["cache_n"] == 0


def test_a_slot_past_the_last_wraps_and_is_named_as_it_was(engine: EngineProcess) -> None:
    whole = prefilled(engine, "alpha", slot=1)["tokens_evaluated"]
    saved = act(engine, "save", 7, filename="wrapped.kv").json()
    assert (saved["id_slot"], saved["n_saved"]) == (7, whole)


@pytest.mark.parametrize("spoilt", ["missing", "cut", "garbage"])
def test_a_file_that_cannot_be_restored_is_refused_and_leaves_the_slot_empty(
    engine: EngineProcess, spoilt: str
) -> None:
    prefilled(engine, "alpha")
    act(engine, "save", filename="good.kv")
    data = (engine.folder / "kv" / "good.kv").read_bytes()
    files = {"cut": data[: len(data) // 2], "garbage": bytes(range(256)) * 4}
    if spoilt in files:
        (engine.folder / "kv" / f"{spoilt}.kv").write_bytes(files[spoilt])
    refused = act(engine, "restore", filename=f"{spoilt}.kv")
    assert (refused.status_code, refused.json()["error"]) == (
        400,
        {
            "code": 400,
            "message": "Unable to restore slot: No available space in KV cache or invalid slot save file",
            "type": "invalid_request_error",
        },
    )
    assert prefilled(engine, "alpha")["timings"]["cache_n"] == 0


def test_a_folder_that_is_gone_cannot_be_saved_to(engine: EngineProcess) -> None:
    folder = engine.folder / "kv"
    folder.rename(engine.folder / "away")
    refused = act(engine, "save", filename="a.kv")
    (engine.folder / "away").rename(folder)
    assert (refused.status_code, refused.json()["error"]) == (
        500,
        {"code": 500, "message": "Unable to save slot", "type": "server_error"},
    )


@pytest.mark.parametrize(
    ("action", "slot", "body", "words"),
    [
        ("save", "x", {"filename": "a.kv"}, "Invalid slot ID"),
        ("mend", 0, {"filename": "a.kv"}, "Invalid action"),
        ("save", 0, {"filename": "../a.kv"}, "Invalid filename"),
        ("restore", 0, {"filename": "../a.kv"}, "Invalid filename"),
        ("restore", 0, {}, "[json.exception.out_of_range.403] key 'filename' not found"),
    ],
)
def test_what_is_asked_wrongly_of_a_slot_is_refused(
    engine: EngineProcess, action: str, slot: object, body: dict[str, str], words: str
) -> None:
    refused = act(engine, action, slot, **body)
    assert (refused.status_code, refused.json()["error"]) == (
        400,
        {"code": 400, "message": words, "type": "invalid_request_error"},
    )


def test_a_bare_prompt_over_the_window_is_refused_with_both_numbers(engine: EngineProcess) -> None:
    error = engine.http.post("/completion", json={"prompt": "word " * 5000, "id_slot": 0}).json()["error"]
    assert (error["type"], error["n_ctx"]) == ("exceed_context_size_error", 4096)


@pytest.mark.parametrize("kind", ["standin", "embedded"])
def test_without_a_folder_slots_have_no_actions(
    kind: Literal["standin", "embedded"], tmp_path: Path, model_path: Callable[[Script], Path]
) -> None:
    with EngineProcess(tmp_path, model_path(TOOL_THEN_TEXT), kind=kind, slots=1) as engine:
        refused = act(engine, "save", filename="a.kv")
    assert (refused.status_code, refused.json()["error"]["type"]) == (501, "not_supported_error")
    assert "--slot-save-path" in refused.json()["error"]["message"]
