"""The files that the setting `warm` names.

Owns: their two forms, what is wrong with one, and the shortest request of the Messages API that begins alike.
Never: sends one, or judges more of a request than whether it is one; who serves it does.

A `.txt` or `.md` file is a system prompt: all of it but the line break at its end, which editors add. A `.json` file is
the body of a `POST /v1/messages`, recorded: its system text and tools count, its messages do not.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.errors import ConfigError

TEXT_SUFFIXES = (".txt", ".md")
RECORDED_SUFFIX = ".json"
# What else of a body decides how a template writes system text and tools.
KEPT = ("system", "tools", "thinking")
SAID = "."  # a conversation has to begin with something
CHARACTERS_A_TOKEN = 4

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class WarmFile:
    """One file. `body` is a request that begins as its conversations do, with hardly more."""

    path: Path
    body: bytes
    characters: int

    @property
    def about_tokens(self) -> int:
        """An estimate: only an engine knows its tokens."""
        return self.characters // CHARACTERS_A_TOKEN


def read(paths: Iterable[Path]) -> list[WarmFile]:
    """All files, in order. Raises ConfigError that names the first that is missing or of no use, and why."""
    return [_read(path) for path in paths]


def _read(path: Path) -> WarmFile:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise _wrong(path, "is not UTF-8 text") from None
    except OSError as error:
        raise _wrong(path, str(error.strerror).lower()) from None
    if path.suffix in TEXT_SUFFIXES:
        kept: Json = {"system": text.removesuffix("\n").removesuffix("\r")}
    elif path.suffix == RECORDED_SUFFIX:
        kept = _recorded(path, text)
    else:
        raise _wrong(path, f"must be a system prompt (.txt or .md) or a recorded request ({RECORDED_SUFFIX})")
    characters = sum(map(_characters, (kept.get("system"), kept.get("tools"))))
    if not characters:
        raise _wrong(path, "holds neither a system prompt nor tools")
    body = kept | {"max_tokens": 1, "messages": [{"role": "user", "content": SAID}]}
    return WarmFile(path, json.dumps(body).encode(), characters)


def _recorded(path: Path, text: str) -> Json:
    try:
        recorded = json.loads(text)
    except ValueError as error:
        raise _wrong(path, f"is not valid JSON: {error}") from None
    if not isinstance(recorded, dict):
        raise _wrong(path, "must hold the body of a POST /v1/messages: a JSON object")
    _check(path, recorded)
    return {name: recorded[name] for name in KEPT if name in recorded}


def _check(path: Path, recorded: Json) -> None:
    """Refuse what the API would refuse as well, in its words, so that nothing is started in vain."""
    system, tools = recorded.get("system"), recorded.get("tools")
    if system is not None and not isinstance(system, str | list):
        raise _wrong(path, "system: must be a string or a list of blocks")
    if tools is not None and not isinstance(tools, list):
        raise _wrong(path, "tools: must be a list")
    for name, part in (("system", system), ("tools", tools)):
        for number, item in enumerate(part if isinstance(part, list) else ()):
            if not isinstance(item, dict):
                raise _wrong(path, f"{name}[{number}]: must be a JSON object")


def _characters(part: Any) -> int:
    if isinstance(part, str):
        return len(part)
    return len(json.dumps(part, ensure_ascii=False)) if part else 0


def _wrong(path: Path, why: str) -> ConfigError:
    return ConfigError(f"warm: {path}: {why}")
