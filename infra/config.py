"""Settings from `CORRAL_*` and `corral.toml`: one frozen object.

Owns: where each value comes from, and the words for one that is wrong. The command line overrides by setting `CORRAL_*`
for the parts it starts.
Never: reads settings a second time; the composition roots load once and hand values on.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from infra import setting_text
from infra.errors import ConfigError
from infra.labels import MAX_LABEL_CHARS, is_label
from infra.settings import AUTO, Settings

__all__ = ["AUTO", "FILE_NAME", "PREFIX", "Loaded", "Settings", "api_keys", "environment", "load"]

PREFIX = "CORRAL_"
FILE_NAME = "corral.toml"
TABLES = ("agent_weights", "key_weights")
OWN_WORDS = ("weight_twice",)  # they begin with a name, which keeps its letters


class Loaded(BaseModel):
    """Settings with the source of each: `default`, the file's path, or the variable's name."""

    model_config = ConfigDict(frozen=True)

    settings: Settings
    sources: dict[str, str]


# Variables with our prefix that are no settings: they speak to the tests or to a single command.
NOT_SETTINGS = frozenset({"CORRAL_CONFIG", "CORRAL_BROKER_PASSWORD", "CORRAL_TEST_REQUIRE_ALL"})


def load(environ: Mapping[str, str] | None = None, file: Path | None = None) -> Loaded:
    """Settings from `file` (else $CORRAL_CONFIG, else ./corral.toml if there), then the environment over it.

    Raises ConfigError that names the key, its source and what is allowed.
    """
    environ = os.environ if environ is None else environ
    values, sources = _from_file(_file(environ, file))
    for name, value in sorted(environ.items()):
        if name.startswith(PREFIX) and name not in NOT_SETTINGS:
            key = name.removeprefix(PREFIX).lower()
            values[key], sources[key] = value, name
    unknown = sorted(set(values) - set(Settings.model_fields))
    if unknown:
        raise ConfigError(f"{sources[unknown[0]]}: unknown setting `{unknown[0]}`{_nearest(unknown[0])}")
    try:
        settings = Settings(**values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = str(first["loc"][0])
        raise ConfigError(f"{sources.get(key, key)}: `{key}`: {_words(first)}") from None
    return Loaded(settings=settings, sources={key: sources.get(key, "default") for key in Settings.model_fields})


def _words(error: ErrorDetails) -> str:
    """What is wrong, and with which entry where a setting is a table."""
    words = error["msg"] if error["type"] in OWN_WORDS else error["msg"][:1].lower() + error["msg"][1:]
    is_table = error["loc"][0] in TABLES and len(error["loc"]) > 1
    return f"{error['loc'][1]}: {words}" if is_table else words


def environment(settings: Settings, **changes: Any) -> dict[str, str]:
    """The `CORRAL_*` variables that make another process load exactly these settings, with `changes` over them."""
    values = {key: getattr(settings, key) for key in Settings.model_fields} | changes
    return {PREFIX + key.upper(): setting_text.as_text(value) for key, value in values.items()}


def api_keys(settings: Settings) -> dict[str, str]:
    """name -> key. Raises ConfigError that shows the form, never the key.

    A name becomes the label of an agent that gives none. A key comes back in a header, where clients differ in how they
    write anything but ASCII.
    """
    keys: dict[str, str] = {}
    for number, entry in enumerate(filter(None, re.split(r"[,\n]", settings.api_keys.get_secret_value())), 1):
        name, colon, key = (part.strip() for part in entry.partition(":"))
        if not (name and colon and key):
            raise ConfigError(f"CORRAL_API_KEYS: entry {number} is not of the form name:key")
        if not is_label(name):
            words = f"must be at most {MAX_LABEL_CHARS} printable characters"
            raise ConfigError(f"CORRAL_API_KEYS: the name of entry {number} {words}")
        if not (key.isascii() and key.isprintable()):
            words = "may hold printable ASCII only: headers carry nothing else alike"
            raise ConfigError(f"CORRAL_API_KEYS: the key of entry {number} {words}")
        if name in keys:
            raise ConfigError(f"CORRAL_API_KEYS: the name `{name}` stands twice")
        keys[name] = key
    return keys


def _file(environ: Mapping[str, str], file: Path | None) -> Path | None:
    named = file or (Path(environ["CORRAL_CONFIG"]) if environ.get("CORRAL_CONFIG") else None)
    if named is not None:
        if not named.is_file():
            raise ConfigError(f"{named}: no such file")
        return named
    return Path(FILE_NAME) if Path(FILE_NAME).is_file() else None


def _from_file(file: Path | None) -> tuple[dict[str, Any], dict[str, str]]:
    if file is None:
        return {}, {}
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from None
    if "warm" in values:
        values["warm"] = setting_text.paths(values["warm"], file.parent)
    return values, dict.fromkeys(values, str(file))


def _nearest(key: str) -> str:
    near = difflib.get_close_matches(key, Settings.model_fields, n=1)
    return f"; did you mean `{near[0]}`?" if near else ""
