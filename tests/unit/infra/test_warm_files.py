"""The files of `warm`: what is read of them, and the words for one that is of no use."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra import warm_files
from infra.errors import ConfigError

pytestmark = pytest.mark.unit


def body_of(path: Path) -> dict[str, Any]:
    [file] = warm_files.read([path])
    return dict(json.loads(file.body))


def write(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("name", ["reviewer.txt", "reviewer.md"])
@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_text_is_a_system_prompt_without_the_line_break_at_its_end(tmp_path: Path, name: str, end: str) -> None:
    body = body_of(write(tmp_path, name, f" Review code.\n\nBe kind. {end}"))
    assert body["system"] == " Review code.\n\nBe kind. "
    assert body["messages"] == [{"role": "user", "content": "."}]
    assert body["max_tokens"] == 1


def test_of_a_recorded_request_only_its_beginning_counts(tmp_path: Path) -> None:
    kept = {"system": [{"type": "text", "text": "s"}], "tools": [{"name": "b"}, {"name": "a"}], "thinking": {"x": 1}}
    dropped = {"stream": True, "tool_choice": {"type": "any"}, "stop_sequences": ["x"], "max_tokens": 32000}
    messages = [{"role": "user", "content": "secret"}]
    path = write(tmp_path, "recorded.json", json.dumps(kept | dropped | {"messages": messages}))
    assert body_of(path) == kept | {"max_tokens": 1, "messages": [{"role": "user", "content": "."}]}


@given(st.dictionaries(st.text(min_size=1), st.text(), min_size=1))
def test_a_schema_keeps_its_order(schema: dict[str, str]) -> None:
    recorded = warm_files._recorded(Path("x.json"), json.dumps({"tools": [schema]}))
    assert list(recorded["tools"][0].items()) == list(schema.items())


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.json", "{", "is not valid JSON"),
        ("a.json", "[]", "must hold the body of a POST /v1/messages"),
        ("a.json", '{"messages": []}', "holds neither a system prompt nor tools"),
        ("a.json", '{"system": "", "tools": []}', "holds neither a system prompt nor tools"),
        ("a.json", '{"system": 5}', "system: must be a string or a list of blocks"),
        ("a.json", '{"system": {"text": "s"}}', "system: must be a string or a list of blocks"),
        ("a.json", '{"system": ["s"]}', "system[0]: must be a JSON object"),
        ("a.json", '{"system": "s", "tools": {"name": "a"}}', "tools: must be a list"),
        ("a.json", '{"tools": [5]}', "tools[0]: must be a JSON object"),
        ("a.txt", "\n", "holds neither a system prompt nor tools"),
        ("a.txt", b"\xff\xfe", "is not UTF-8 text"),
        ("a.yaml", "system: x", "must be a system prompt (.txt or .md) or a recorded request (.json)"),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong(tmp_path: Path, name: str, text: str | bytes, words: str) -> None:
    path = write(tmp_path, name, text)
    with pytest.raises(ConfigError) as caught:
        warm_files.read([path])
    assert caught.value.message.startswith(f"warm: {path}: {words}")


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    for path, words in [(tmp_path / "none.md", "no such file"), (tmp_path, "is a directory")]:
        with pytest.raises(ConfigError, match=f"^warm: {path}: {words}"):
            warm_files.read([path])


def test_tokens_are_estimated_from_system_and_tools_alone(tmp_path: Path) -> None:
    [file] = warm_files.read([write(tmp_path, "a.json", json.dumps({"system": "x" * 4000, "messages": ["y" * 9000]}))])
    assert file.about_tokens == 1000
