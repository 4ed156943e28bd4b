"""What `corral up` says once everything serves.

Owns: addresses, the lines to paste, and the plain words about the demo model, a small window and an idle card.
Never: a key or password; those are the user's to know.
"""

import os
import shlex
import socket
from pathlib import Path

from infra import config
from infra.cli import console, gateway, options
from infra.cli.gateway import Status
from infra.config import PREFIX, Loaded, Settings
from infra.network import is_loopback

COMFORTABLE_TOKENS = 40_000  # Claude Code's first request alone is about 30,000
WORKER_OPTIONS = ("model", "slots", "context_tokens", "threads", "gpu", "engine_args", "data_dir")
WORKER_VARIABLES = (
    "log_level", "log_format", "ageing_s", "urgent_share", "return_hold_s", "fair_half_life_s", "model_name",
    "scratch_slots", "llama_server", "engine_start_timeout_s", "first_token_timeout_s", "between_tokens_timeout_s",
    "answer_timeout_s", "overflow_reserve_tokens", "delta_batch_ms", "lease_lifetime_s", "lease_renew_s", "store_dir",
    "store_limit_bytes", "store_age_s", "store_write_bytes_per_s", "idle_slot_s", "drain_s",
)  # fmt: skip
DEMO_WORDS = (
    "This is the demo model. It proves that the path works, and is far too small to code with.",
    "For real work give a model: corral up --model /path/to/model.gguf, or --model hf:OWNER/REPO:QUANT",
)


def tell(settings: Settings, status: Status, plain: Loaded, *, flower: bool) -> None:
    """Print it all. `plain` is what a command without any option would load here: what it lacks is on the lines."""
    url = gateway.address(settings)
    short_url = gateway.address(plain.settings) == url
    console.say("")
    console.say("Corral is ready.", style="bold green")
    console.say(f"  API     {url}")
    if not is_loopback(settings.host):
        console.say(f"          http://{socket.getfqdn()}:{settings.port} from other machines")
    console.say(f"  Watch   {url}/ui")
    if flower:
        console.say(f"  Flower  http://{settings.flower_host}:{settings.flower_port}")
    for worker in status.workers:
        console.say(
            f"  Worker  {worker.name}: {worker.model}, {len(worker.slots)} slots of {worker.context_tokens} tokens"
        )
    console.say(f"  Logs    {settings.data_dir / 'logs'}")
    if not plain.settings.redis_url:  # the broker was started here
        console.say(f"  Grow    {further_worker(settings, plain)}")
    for line in notes(settings, status):
        console.prose(line, style="yellow")
    console.say("")
    console.say("Open Claude Code on it, from your project's folder:", style="bold")
    console.say("  corral claude" + ("" if short_url else f" --url {url}"))
    console.say("Or set it up by hand (all variables: corral claude --print-env):")
    for line in exports(settings, url, status):
        console.say(f"  {line}")
    console.say("")
    console.say("Ctrl-C stops everything, after the answers that are running.")


def further_worker(settings: Settings, plain: Loaded) -> str:
    """The command of one more worker like those of `settings`: its variables and options say what only the command line
    or the environment of this one did."""
    given = [key for key in WORKER_OPTIONS if _only_here(key, settings, plain)]
    values = config.environment(settings)
    variables = [PREFIX + key.upper() for key in WORKER_VARIABLES if _only_here(key, settings, plain)]
    words = [f"CORRAL_REDIS_URL=$(cat {shlex.quote(str(settings.data_dir / 'broker' / 'url'))})"]
    words += [f"{variable}={shlex.quote(values[variable])}" for variable in variables]
    words.append("corral")
    if file := os.environ.get("CORRAL_CONFIG"):
        words.append(f"--config {shlex.quote(str(Path(file).absolute()))}")
    words.append("worker --name more")
    words += [f"{options.option(key)} {shlex.quote(values[PREFIX + key.upper()])}" for key in given]
    return " ".join(words)


def _only_here(key: str, settings: Settings, plain: Loaded) -> bool:
    is_variable = plain.sources[key].startswith(PREFIX)
    return is_variable or getattr(settings, key) != getattr(plain.settings, key)


def exports(settings: Settings, url: str, status: Status) -> list[str]:
    """The least that Claude Code needs, for a shell."""
    token = "YOUR_KEY" if settings.api_keys.get_secret_value() else gateway.NO_KEY
    lines = [f"export ANTHROPIC_BASE_URL={url}", f"export ANTHROPIC_AUTH_TOKEN={token}"]
    models = sorted({worker.model for worker in status.workers if worker.model})
    if models:
        lines.append(f"export ANTHROPIC_MODEL={models[0]}")
    return lines


def notes(settings: Settings, status: Status) -> list[str]:
    """What the user should know before trusting it with work."""
    if settings.model == "demo":
        return ["", *DEMO_WORDS]
    smallest = min((worker.context_tokens for worker in status.workers if worker.context_tokens), default=0)
    if 0 < smallest < COMFORTABLE_TOKENS:
        return [
            "",
            f"A window of {smallest} tokens is small: Claude Code's first request alone takes about 30,000.",
            "Give more with --context 65536 or --context auto, if model and memory allow it.",
        ]
    return []
