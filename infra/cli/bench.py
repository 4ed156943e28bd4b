"""`corral bench`: the measurements, by one command.

Owns: their names, and one sentence on each.
Never: measures; each is a program of `infra.bench` with options of its own, and takes this process's place.
"""

import os
import signal
import sys
from typing import Annotated

import typer

from infra.cli import console, parts
from infra.errors import ConfigError

BENCHES = {
    "overhead": "what Corral adds to its own engine: time to first token, requests a second, commands, memory",
    "agents": "coding agents, made up or recorded, against Corral and others: how much is prefilled again",
    "record": "a trace of live agents, without a word of theirs, for `agents --trace`",
    "load": "many clients at once: does every request succeed, and how long does it take",
    "four": "four agents at once, side by side and one at a time",
    "warm": "what a new agent waits for its first token, on a base that is new, used or warmed up",
    "fairness": "who gets how much, and who waits, when agents want more than there is",
    "overload": "far more requests than room: who is refused, how soon, and do hints hold",
    "coalesce": "identical requests at once, with coalescing and without",
    "engine": "which engine settings make a model faster here, one at a time, and the lines for corral.toml",
    "peers": "Corral, LiteLLM, vllm-router, claude-code-router and llama-server itself on the same engines",
    "gather": "short requests on two workers, gathered or each on its own",
}
NO_NAME = ("", "-h", "--help")
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


def bench(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Which one; none: list them.")] = "",
) -> None:
    """Measure. `corral bench` lists what there is, `corral bench NAME --help` tells a bench's options."""
    if name in NO_NAME:
        table = console.grid("Bench", "Tells")
        for one, words in BENCHES.items():
            table.add_row(one, words)
        console.show(table)
        return
    if name not in BENCHES:
        raise ConfigError(f"bench {name}: is none; there are {', '.join(BENCHES)}")
    # It takes a second to import; a Ctrl-C then would be a stack trace, so `run` of the bench hears it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    # Safe path: a folder that has an `infra` of its own must not be measured.
    parts.become((sys.executable, "-m", f"infra.bench.{name}", *context.args), os.environ | {"PYTHONSAFEPATH": "1"})
