"""`corral why`: why a request's tokens were read again.

Owns: how the accounts of single requests are shown.
Never: judges; the API worked it out when the answer ended.
"""

import json
from typing import Annotated

import typer

from infra.cli import console, gateway, options
from infra.cli.gateway import Gateway, Why


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
    settings = options.load_with().settings
    with Gateway(url or gateway.address(settings), gateway.key(settings, key)) as client:
        if as_json:
            console.say(json.dumps(client.why_json(name), indent=2))
            return
        for account in client.why(name):
            _show(account)


def _show(account: Why) -> None:
    cost = f", lost {account.lost_tokens:,} tokens and {account.lost_ms / 1000:.1f} s" if account.lost_tokens else ""
    console.say(
        f"{account.request} ({account.kind} of {account.agent}): {account.cause.replace('_', ' ')}{cost}", "bold"
    )
    console.prose(f"  {account.sentence}")
    console.prose(f"  What to do: {account.to_do}")
