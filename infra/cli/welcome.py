"""What `corral up` says once everything serves.

Owns: addresses, the lines to paste, and the plain words about the demo model, a small window and an idle card.
Never: a key or password; those are the user's to know.
"""

import socket

from infra.cli import console, gateway
from infra.cli.gateway import Status
from infra.config import Settings
from infra.network import is_loopback

COMFORTABLE_TOKENS = 40_000  # Claude Code's first request alone is about 30,000
DEMO_WORDS = (
    "This is the demo model. It proves that the path works, and is far too small to code with.",
    "For real work give a model: corral up --model /path/to/model.gguf, or --model hf:OWNER/REPO:QUANT",
)


def tell(settings: Settings, status: Status, *, flower: bool, short_url: bool, own_broker: bool) -> None:
    """Print it all. `short_url`: `corral claude` finds this API by its own settings, without --url.

    `own_broker`: the broker was started here, so a further worker needs its address.
    """
    url = gateway.address(settings)
    console.say("")
    console.say("Corral is ready.", style="bold green")
    console.say(f"  API     {url}")
    if not is_loopback(settings.host):
        console.say(f"          http://{socket.getfqdn()}:{settings.port} from other machines")
    if flower:
        console.say(f"  Flower  http://{settings.flower_host}:{settings.flower_port}")
    for worker in status.workers:
        console.say(
            f"  Worker  {worker.name}: {worker.model}, {len(worker.slots)} slots of {worker.context_tokens} tokens"
        )
    console.say(f"  Logs    {settings.data_dir / 'logs'}")
    if own_broker:
        url_file = settings.data_dir / "broker" / "url"
        console.say(f"  Grow    CORRAL_REDIS_URL=$(cat {url_file}) corral worker --name more")
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
