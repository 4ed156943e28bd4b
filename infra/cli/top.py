"""`corral top`: the cluster and its requests, live in a terminal.

Owns: the line of totals, and the slots as bars.
Never: the tables of requests (`top_requests`) and those that `corral status` shows too; /ui is the same in a browser.
"""

import time
from collections.abc import Iterable
from statistics import median

from rich.text import Text

from infra.cli import console, gateway, live, options, status
from infra.cli.fitted import Cell, Fitted, Part, Whole
from infra.cli.gateway import Gateway, Running, Slot, Status, Worker
from infra.cli.top_requests import name, recent_table, running_table, seconds

WIDTH = 24  # of a bar
SLOTS = "█found ▒new ·free"  # the heading of the bars
MOST_LOOKS = 4  # API processes that have not been listened to tell of their requests within two seconds
AGAIN_S = 1.0


def top(url: options.Url = None, key: options.Key = None) -> None:
    """Watch workers, running streams, queues and recent requests, until Ctrl-C. Off a terminal: once, as text."""
    settings = options.load_with().settings
    with Gateway(url or gateway.address(settings), gateway.key(settings, key)) as client:
        if console.out.is_terminal:
            live.follow(lambda: shown(client.status(requests=True)))
        else:
            found = _once(client)
            console.show(Whole(headline(found), parts(found)))


def _once(client: Gateway) -> Status:
    """With the requests of all API processes, if they tell in time."""
    for _ in range(MOST_LOOKS - 1):
        found = client.status(requests=True)
        if not found.apis_silent:
            return found
        time.sleep(AGAIN_S)
    return client.status(requests=True)


def shown(found: Status) -> Fitted:
    """As much of everything as the terminal is high."""
    return Fitted(headline(found), parts(found))


def parts(found: Status) -> list[Part]:
    """The tables, the most telling first: a worker that is not ready before all else."""
    workers, *others = status.parts(found)
    tables = [slots_table(found), running_table(found), recent_table(found)]
    well = not found.lost and all(worker.state == "ready" for worker in found.workers)
    tables.insert(len(tables) if well else 0, workers)
    return tables + [part for part in others if part.headings[0] != status.SLOTS]


def headline(found: Status) -> Text:
    """The totals, as the page has them on its top."""
    slots, ready = sum(len(one.slots) for one in found.workers), sum(one.state == "ready" for one in found.workers)
    state = f"{ready} ready" if ready else "no worker is ready"
    prompts = [one for one in found.recent if one.prompt_tokens]
    firsts = [one.first_ms for one in found.recent if one.first_ms is not None]
    told = [
        ("running", f"{sum(one.running for one in found.workers)}/{slots}"),
        ("waiting", f"{found.waiting}"),
        ("tokens/s", f"{sum(one.per_s for one in found.running):.0f}"),
        ("reuse", _percent(sum(one.cached_tokens for one in prompts), sum(one.prompt_tokens or 0 for one in prompts))),
        ("first token", seconds(round(median(firsts))) if firsts else "-"),
    ]
    words = Text(state, style="bold green" if ready else "bold red")
    for what, value in told:
        words.append(f"  {what} ", style="dim not bold").append(value, style="bold default")
    return words


def slots_table(found: Status) -> Part:
    """One row a slot: who holds it, how full it is, and how much of that was found in the cache by who is answered."""
    rows = [_slot_row(worker, slot, found.running) for worker in found.workers for slot in worker.slots]
    headings = ("Slot", "Agent", "", SLOTS, "Tokens", "Of")
    return Part(headings, rows, right=("Tokens", "Of"), firm=("Slot", SLOTS), spare=("Of",))


def _slot_row(worker: Worker, slot: Slot, running: Iterable[Running]) -> tuple[Cell, ...]:
    now = next((one for one in running if (one.worker, one.slot) == (worker.name, slot.slot)), None)
    held = max(slot.tokens, (now.prompt_tokens or 0) + now.told) if now else slot.tokens
    new = max(0, held - now.cached_tokens) if now else 0
    agent = name(now) if now else slot.agent or "-"
    doing = "answers" if slot.busy else "idle" if slot.conversation else "free"
    style = "bold" if slot.busy else "dim"
    drawn = _bar(held - new, new, worker.context_tokens)
    return f"{worker.name}/{slot.slot}", Text(agent, style=style), doing, drawn, f"{held}", f"{worker.context_tokens}"


def _bar(found: int, new: int, window: int) -> Text:
    """The window of a slot; what is there at all has a letter."""
    scale = WIDTH / max(1, window)
    new_letters = min(WIDTH, max(1, round(new * scale))) if new else 0
    found_letters = min(WIDTH - new_letters, max(1, round(found * scale))) if found else 0
    text = Text("█" * found_letters, style="green").append("▒" * new_letters, style="blue")
    return text.append("·" * (WIDTH - found_letters - new_letters), style="dim")


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"
