"""`corral claude`: Claude Code as a named agent on this cluster.

Owns: the client's environment: address, key, headers, model names, window, patience.
Never: changes a setting of the client on disk.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from infra import warm_files
from infra.cli import console, gateway, options
from infra.cli.base_recorder import BaseRecorder
from infra.cli.gateway import Gateway, Status
from infra.config import Settings
from infra.errors import NoWorker, StartError

INSTALL = "npm install -g @anthropic-ai/claude-code"
MOST_OUTPUT_TOKENS = 32_000  # what the client asks of models it does not know
LEAST_OUTPUT_TOKENS = 1_024
OUTPUT_SHARE = 4  # a quarter of the window to write in
# Each kind of request the client knows a model for; the served one answers them all.
MODEL_VARIABLES = (
    "ANTHROPIC_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    "ANTHROPIC_DEFAULT_FABLE_MODEL",
    "ANTHROPIC_SMALL_FAST_MODEL",
    "CLAUDE_CODE_SUBAGENT_MODEL",
)
# With one of these the client would pass by ANTHROPIC_BASE_URL or prefer another credential.
UNWANTED = (
    "ANTHROPIC_API_KEY",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "CLAUDE_CODE_USE_BEDROCK",
    "CLAUDE_CODE_USE_VERTEX",
    "CLAUDE_CODE_USE_FOUNDRY",
    "CLAUDE_CODE_USE_MANTLE",
    "CLAUDE_CODE_USE_ANTHROPIC_AWS",
    "CLAUDE_CODE_USE_GATEWAY",
)


@dataclass(frozen=True)
class Served:
    """The model a client is pointed at and its window in tokens."""

    model: str
    context_tokens: int


def claude(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGS", help="Passed on to Claude Code.", show_default=False)
    ] = None,
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="NAME", help="Name of this agent; else the folder's.")
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option("--priority", metavar="0-9", min=0, max=9, help="0 is served first; else the API's default."),
    ] = None,
    url: options.Url = None,
    key: options.Key = None,
    print_env: Annotated[bool, typer.Option("--print-env", help="Print the variables and stop.")] = False,
    record_base: Annotated[
        Path | None,
        typer.Option("--record-base", metavar="FILE.json", help="Write its system prompt and tools for `warm`."),
    ] = None,
) -> None:
    """Start Claude Code on this cluster, as a named agent with a priority."""
    settings = options.load_with().settings
    address, secret = url or gateway.address(settings), gateway.key(settings, key)
    program = None if print_env else find()
    with Gateway(address, secret) as client:
        served = choose(client.models(), client.status())
    name = header_safe(agent or Path.cwd().name)
    variables = environment(settings, client.url, secret, served, headers(name, priority))
    if program is None:
        for variable, value in variables.items():
            console.say(f"export {variable}={quoted(value)}")
        return
    command = ["claude", *(arguments or [])]
    if record_base is not None:
        _record(record_base, program, command, variables)
        return
    os.execve(program, command, _whole(variables, address))  # noqa: S606


def _whole(variables: Mapping[str, str], address: str) -> dict[str, str]:
    """The client's environment: this process's own, without what would pass by `address`, and `variables`."""
    kept = {variable: value for variable, value in os.environ.items() if variable not in UNWANTED}
    return {**kept, **variables, **proxy_exception(address, kept)}


def _record(file: Path, program: str, command: list[str], variables: Mapping[str, str]) -> None:
    """Run the client on a recorder in place of the cluster; its first request ends in `file`, and is refused.

    Raises ConfigError for the file's name, StartError when the client asked nothing.
    """
    with BaseRecorder(file) as recorder:
        environ = _whole({**variables, "ANTHROPIC_BASE_URL": recorder.url}, recorder.url)
        subprocess.run(command, executable=program, env=environ, check=False)
        if not recorder.recorded:
            raise StartError("Claude Code", "it asked nothing; type a word before you leave it, or give -- -p hi")
    [base] = warm_files.read([file.absolute()])
    console.say(f"Wrote {file}, about {base.about_tokens} tokens. Workers prefill it when `warm` names it.")


def find() -> str:
    """The client's program. Raises StartError that says how to install it."""
    program = shutil.which("claude")
    if program is None:
        raise StartError("Claude Code", f"no `claude` on PATH; install it with {INSTALL} (needs Node 18 or newer)")
    return program


def choose(models: tuple[str, ...], status: Status) -> Served:
    """The first model served, with the smallest window any of its workers has. Raises NoWorker when there is none."""
    for model in models:
        windows = [w.context_tokens for w in status.workers if w.model == model and w.context_tokens > 0]
        if windows:
            return Served(model, min(windows))
    raise NoWorker("no worker serves a model yet; `corral status` shows what they are doing")


def environment(settings: Settings, url: str, key: str, served: Served, custom_headers: str) -> dict[str, str]:
    """The client's variables, in the order a reader would want them."""
    patience_ms = str(round((settings.wait_identified_s + settings.first_token_timeout_s) * 1000))
    output_tokens = max(LEAST_OUTPUT_TOKENS, min(MOST_OUTPUT_TOKENS, served.context_tokens // OUTPUT_SHARE))
    return {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": key,
        "ANTHROPIC_CUSTOM_HEADERS": custom_headers,
        **dict.fromkeys(MODEL_VARIABLES, served.model),
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(served.context_tokens),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(output_tokens),
        "API_TIMEOUT_MS": patience_ms,
        "CLAUDE_STREAM_IDLE_TIMEOUT_MS": patience_ms,
        "CLAUDE_BYTE_STREAM_IDLE_TIMEOUT_MS": patience_ms,
        "CLAUDE_CODE_RETRY_WATCHDOG": "1",  # keeps it retrying past the third 529
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",  # differs in each conversation and would cost every shared prefix
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }


def headers(agent: str, priority: int | None, existing: str | None = None) -> str:
    """ANTHROPIC_CUSTOM_HEADERS: newline-separated, the user's own lines first, ours only once."""
    existing = os.environ.get("ANTHROPIC_CUSTOM_HEADERS", "") if existing is None else existing
    ours = [f"X-Agent-Id: {agent}"] + ([f"X-Priority: {priority}"] if priority is not None else [])
    names = {"x-agent-id"} | ({"x-priority"} if priority is not None else set())
    kept = [line for line in existing.splitlines() if line.partition(":")[0].strip().lower() not in names | {""}]
    return "\n".join([*kept, *ours])


def header_safe(name: str) -> str:
    """A name in the letters any HTTP header carries, at most 64 of them."""
    return re.sub(r"[^A-Za-z0-9._@-]+", "-", name).strip("-")[:64] or "agent"


def quoted(value: str) -> str:
    """For a shell, with a line break written so that it can be pasted in one line."""
    if "\n" not in value:
        return shlex.quote(value)
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"$'{escaped}'"


def proxy_exception(url: str, environ: Mapping[str, str]) -> dict[str, str]:
    """NO_PROXY with the API's host in it, when a proxy is set that would otherwise be asked for it."""
    if not any(environ.get(name) for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy")):
        return {}
    host = urlsplit(url).hostname
    value = ",".join(filter(None, [environ.get("NO_PROXY") or environ.get("no_proxy"), host]))
    return {"NO_PROXY": value, "no_proxy": value}
