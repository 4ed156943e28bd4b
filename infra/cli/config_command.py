"""`corral config`: the settings in effect and where each came from.

Owns: how they are shown, secrets never.
Never: changes one.
"""

import json
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from pydantic import SecretStr

from infra.cli import console, options
from infra.config import FILE_NAME, Settings

MASK = "********"


def config(as_json: Annotated[bool, typer.Option("--json", help="As JSON: name -> value and source.")] = False) -> None:
    """Show the effective settings and the source of each: default, a file, or a variable."""
    loaded = options.load_with()
    shown = {name: {"value": masked(loaded.settings, name), "source": loaded.sources[name]} for name in loaded.sources}
    if as_json:
        console.say(json.dumps(shown, indent=2, default=str))
        return
    table = console.grid("Setting", "Value", "Source", whole=("Value", "Source"))
    for name, entry in shown.items():
        style = "dim" if entry["source"] == "default" else "bold"
        table.add_row(name, "-" if entry["value"] == "" else str(entry["value"]), entry["source"], style=style)
    console.show(table)
    console.say(f"\nSet them in {FILE_NAME} by these names, or as CORRAL_ and the name in capitals.")


def masked(settings: Settings, name: str) -> Any:
    """A setting's value with everything secret in it hidden; whether a secret is set stays visible."""
    value = getattr(settings, name)
    if isinstance(value, SecretStr):
        return MASK if value.get_secret_value() else ""
    if name in ("redis_url", "trace_endpoint"):
        return without_password(value)
    return ", ".join(map(str, value)) if isinstance(value, tuple) else value


def without_password(url: str) -> str:
    """A URL whose password, if any, is hidden; a user alone is often a token, and hidden too."""
    parts = urlsplit(url)
    if parts.username and parts.password is None:
        return url.replace(f"//{parts.username}@", f"//{MASK}@")
    return url.replace(f":{parts.password}@", f":{MASK}@") if parts.password else url
