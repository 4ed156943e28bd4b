"""Settings that are more than one word, as a text and back.

Owns: lists of files and tables of weights, as an environment variable holds them; what an address is.
Never: says which setting has which form (`config` does), or refuses a value of a wrong type.
"""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr


def paths(value: Any, folder: Path) -> Any:
    """A list of paths, or one in a text with commas or, where it has any, line breaks; relative ones are in `folder`.

    What is neither is left for the check of its type to refuse.
    """
    if isinstance(value, str):
        value = [entry.strip() for entry in value.split("\n" if "\n" in value else ",") if entry.strip()]
    if not isinstance(value, list | tuple) or not all(isinstance(entry, str | Path) for entry in value):
        return value
    return tuple((folder / Path(entry).expanduser()).absolute() for entry in value)


def weights(value: Any) -> Any:
    """A table of weights, or one in a text; what is neither is left for the check of its type to refuse.

    Raises ValueError that names an entry which stands twice in a text.
    """
    if not isinstance(value, str):
        return value
    entries = value.split("\n" if "\n" in value else ",")  # a name may hold a comma
    pairs = [entry.rpartition("=") for entry in entries if entry.strip()]
    if not all(name.strip() and weight.strip() for name, _, weight in pairs):
        return None
    found: dict[str, str] = {}
    for name, _, weight in pairs:
        if name.strip() in found:
            raise ValueError(f"{name.strip()}: stands twice")
        found[name.strip()] = weight.strip()
    return found


def is_http_address(text: str) -> bool:
    """Whether a text is an http(s) URL with a host; behind a query or a fragment no path can be added."""
    try:
        parts = urlsplit(text)
        reached = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        return reached and not (parts.query or parts.fragment)
    except ValueError:
        return False


def as_text(value: Any) -> str:
    """As an environment variable holds it; read back it is the same value."""
    if isinstance(value, dict):
        return "".join(f"{name}={weight}\n" for name, weight in value.items())
    if isinstance(value, tuple):
        return "".join(f"{entry}\n" for entry in value)  # a name may hold a comma
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)
