"""`corral status`: who does what now.

Owns: the tables of workers, slots and queues, and the words of what waiting comes to.
Never: decides whether that is good; `corral doctor` does.
"""

import json
import time
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from infra.cli import console, gateway, live, options
from infra.cli.fitted import Cell, Fitted, Part, Whole
from infra.cli.gateway import Gateway, Lost, Slot, Status, Store, Waiting, Worker

CONVERSATION_LETTERS = 10  # enough to tell them apart
SLOTS = "Slots of"  # the first heading of the table of slots
LEAST_WAITS = 5  # fewer say nothing of the next ones
NO_WORKER = "No worker is known. Start one with `corral up`, or `corral worker` beside a broker."
STARTS_OF = {
    "loading": "once it is ready",
    "failing": "once it is ready",
    "sick": "once it is well",
    "restarting": "once it is ready",
    "draining": "once moved",
    "drained": "once moved",
}
COLOUR_OF = {
    "ready": "green",
    "loading": "yellow",
    "restarting": "yellow",
    "draining": "yellow",
    "drained": "yellow",
    "failing": "red",
    "sick": "red",
}


def status(
    as_json: Annotated[bool, typer.Option("--json", help="What the API says, as JSON.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again each second, until Ctrl-C.")] = False,
    url: options.Url = None,
    key: options.Key = None,
) -> None:
    """Show workers, slots, who waits for how long, saved caches and what cache misses cost."""
    settings = options.load_with().settings
    with Gateway(url or gateway.address(settings), gateway.key(settings, key)) as client:
        if watch:
            _watch(client, as_json=as_json)
        elif as_json:
            console.say(json.dumps(client.status_json(), indent=2))
        else:
            console.show(tables(client.status()))


def _watch(client: Gateway, *, as_json: bool) -> None:
    """Until Ctrl-C; off a terminal also until an error of the API."""
    if console.out.is_terminal and not as_json:
        live.follow(lambda: fitted(client.status()))
        return
    try:
        while True:
            if as_json:
                console.say(json.dumps(client.status_json()))
            else:
                console.show(tables(client.status()))
            time.sleep(live.EVERY_S)
    except KeyboardInterrupt:
        return


def tables(status: Status) -> RenderableType:
    """Everything, as one thing to print."""
    return Whole(wait_words(status), parts(status)) if status.workers or status.lost else Text(NO_WORKER)


def fitted(status: Status) -> RenderableType:
    """As much of it as the terminal is high."""
    return Fitted(wait_words(status), parts(status)) if status.workers or status.lost else Text(NO_WORKER)


def parts(status: Status) -> list[Part]:
    """The tables, the most telling first."""
    found = [workers_table(status)]
    found += [line_table(status)] if any(worker.line for worker in status.workers) else []
    found += [queue_table(status), slots_table(status)]
    found += [store_table(status)] if any(worker.store for worker in status.workers) else []
    return found + ([misses_table(status)] if status.misses else [])


def workers_table(status: Status) -> Part:
    """One row a worker."""
    headings = ("Worker", "State", "Model", "Busy", "Window", "GPU", "Memory")
    rows = [_worker_row(worker) for worker in status.workers] + [_lost_row(lost) for lost in status.lost]
    return Part(headings, rows, right=("Busy", "Window", "Memory"), firm=("State",))


def _worker_row(worker: Worker) -> tuple[Cell, ...]:
    busy = f"{sum(slot.busy for slot in worker.slots)}/{len(worker.slots)}"
    state = Text(worker.state, style=COLOUR_OF.get(worker.state, ""))
    model = _with_reason(worker.model or "-", worker.reason)
    memory = console.size(worker.engine_bytes) if worker.engine_bytes else "-"
    return worker.name, state, model, busy, f"{worker.context_tokens}", worker.gpu or "-", memory


def _lost_row(lost: Lost) -> tuple[Cell, ...]:
    left = sum(lost.queued) + lost.running
    words = f"{left} of its requests {'is' if left == 1 else 'are'} left"
    return lost.name, Text("gone", style="red"), words, "-", "-", "-", "-"


def _with_reason(words: str, reason: str) -> Text:
    return Text.assemble(words, (f"\n{reason}" if reason else "", "dim"))


def slots_table(status: Status) -> Part:
    """One row a slot: who holds it and how full it is."""
    rows = [_slot_row(worker, slot) for worker in status.workers for slot in worker.slots]
    return Part((SLOTS, "Slot", "Agent", "Conversation", "Tokens", ""), rows, right=("Slot", "Tokens"), firm=("",))


def _slot_row(worker: Worker, slot: Slot) -> tuple[Cell, ...]:
    held = slot.conversation is not None
    doing = "answering" if slot.busy else "idle" if held else "free"
    conversation = (slot.conversation or "-")[:CONVERSATION_LETTERS]
    return worker.name, f"{slot.slot}", slot.agent or "-", conversation, f"{slot.tokens}" if held else "-", doing


def queue_table(status: Status) -> Part:
    """One row a worker: queued requests of each level, 0 first."""
    levels = tuple(f"{level}" for level in range(10))
    lines = [(one.name, one.queued) for one in status.workers] + [(one.name, one.queued) for one in status.lost]
    rows = [(name, *(f"{count}" if count else "." for count in queued)) for name, queued in lines]
    return Part(("Queued at level", *levels), rows, right=levels)


def line_table(status: Status) -> Part:
    """One row a queued request, in the order in which they are expected to be started."""
    right = ("Place", "Level", "Waits for", "Starts in")
    rows = [_line_row(worker, one) for worker in status.workers for one in worker.line]
    unknown = sum(max(0, sum(worker.queued) - len(worker.line)) for worker in status.workers if worker.line)
    return Part(("Waiting at", "Place", "Agent", *right[1:]), rows, right=right, unknown=unknown)


def _line_row(worker: Worker, one: Waiting) -> tuple[Cell, ...]:
    starts = "never" if one.expected_s is None else f"{one.expected_s:.0f} s"
    starts = STARTS_OF.get(worker.state, starts)
    return worker.name, f"{one.place}", one.agent, f"{one.level}", f"{one.waited_s:.0f} s", starts


def wait_words(status: Status) -> Text:
    """How many wait, how far their expected waits were off, and what became of those that could not."""
    wait = status.wait
    words = [f"Waiting in all: {status.waiting}"]
    if wait.waits >= LEAST_WAITS:
        words.append(
            f"Expected starts were off by {wait.median_error_s:.1f} s in the median ({wait.p90_error_s:.1f} s for nine "
            f"in ten; last {wait.waits} waits)"
        )
    long, full = wait.refused.get("wait", 0), wait.refused.get("full", 0)
    if long or full or wait.in_vain or wait.promises_open:
        words.append(
            f"Refused: {long + full} ({long} for a wait that is too long, {full} for a full line); "
            f"waited in vain: {wait.in_vain}. Of those told to ask again, {wait.promises_kept} came back in time and "
            f"were let in, {wait.promises_open} may still come"
        )
    if wait.moved or status.coalesced:
        words.append(
            f"Moved to start sooner: {wait.moved}; answered together with an identical request: {status.coalesced}"
        )
    return Text("\n".join(words))


def store_table(status: Status) -> Part:
    """One row a worker: whether it saves caches and restores them, or why not."""
    counts = ("Used", "Saves", "Restores", "Failures")
    rows = [_store_row(worker.name, worker.store) for worker in status.workers if worker.store is not None]
    return Part(("Saved caches of", "", *counts), rows, right=counts)


def _store_row(name: str, store: Store) -> tuple[Cell, ...]:
    numbers = (store.saves, store.restores, store.failures)
    on = _with_reason("off" if store.off else "on", store.off)
    return name, on, console.size(store.used_bytes), *(f"{number}" for number in numbers)


def misses_table(status: Status) -> Part:
    """One row a cause, the dearest first. `corral why` tells of single requests."""
    columns = ("Times", "Tokens read again", "Seconds")
    causes = sorted(status.misses.items(), key=lambda item: -item[1].tokens)
    rows = [
        (cause.replace("_", " "), f"{misses.count}", f"{misses.tokens}", f"{misses.ms / 1000:.1f}")
        for cause, misses in causes
    ]
    return Part(("Cache misses", *columns), rows, right=columns)
