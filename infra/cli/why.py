"""`corral why`: why a request's tokens were read again.

Owns: how the accounts of single requests are shown.
Never: judges; the API worked it out when the answer ended.
"""

import json
from typing import Annotated

import typer

from infra.cli import console, gateway, options
from infra.cli.gateway import Gateway, Why
from infra.errors import ConfigError, NotFound

MOST_ECHO = 60
NO_LOSS = "none"  # the cause of a turn that lost nothing worth telling


def why(
    name: Annotated[
        str, typer.Argument(metavar="REQUEST|AGENT", help="A request's id, or an agent for its last ones.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="What the API says, as JSON.")] = False,
    url: options.Url = None,
    key: options.Key = None,
) -> None:
    """Say why a request, or the last ones of an agent, did not find their cache, and what that cost.

    A request's id is in the header `request-id` of its answer and in its log line.
    """
    if not name.strip():
        raise ConfigError("REQUEST|AGENT is empty; give a request's id or an agent's name")
    settings = options.load_with().settings
    with Gateway(url or gateway.address(settings), gateway.key(settings, key)) as client:
        try:
            _tell(client, name, as_json=as_json)
        except NotFound as error:
            raise NotFound(error.message.replace(name, _shortened(name))) from None


def _tell(client: Gateway, name: str, *, as_json: bool) -> None:
    if as_json:
        console.say(json.dumps(client.why_json(name), indent=2))
        return
    for account in client.why(name):
        _show(account)


def _shortened(name: str) -> str:
    return name if len(name) <= MOST_ECHO else f"{name[: MOST_ECHO - 3]}..."


def _show(account: Why) -> None:
    heading = f"{account.request} ({account.kind} of {account.agent}): {account.cause.replace('_', ' ')}"
    console.prose(f"{heading}{_cost(account)}", "bold")
    console.prose(f"  {account.sentence}")
    console.prose(f"  What to do: {account.to_do}")


def _cost(account: Why) -> str:
    if account.cause == NO_LOSS or not account.lost_tokens:
        return ""
    unit = "token" if account.lost_tokens == 1 else "tokens"
    return f", lost {account.lost_tokens:,} {unit} and {account.lost_ms / 1000:.1f} s"
