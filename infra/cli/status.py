"""`corral status`: who does what now.

Owns: the tables of workers, slots and queues, and the words of what waiting comes to.
Never: decides whether that is good; `corral doctor` does.
"""

import json
import time
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from infra.cli import console, gateway, options
from infra.cli.gateway import Gateway, Slot, Status, Worker

WATCH_S = 1.0
CONVERSATION_LETTERS = 10  # enough to tell them apart
COLOUR_OF = {"ready": "green", "loading": "yellow", "draining": "yellow", "failing": "red"}


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
    """Until Ctrl-C, or an error of the API."""
    try:
        if as_json or not console.out.is_terminal:
            while True:
                if as_json:
                    console.say(json.dumps(client.status_json()))
                else:
                    console.show(tables(client.status()))
                time.sleep(WATCH_S)
        with Live(tables(client.status()), console=console.out, auto_refresh=False, screen=True) as live:
            while True:
                time.sleep(WATCH_S)
                live.update(tables(client.status()), refresh=True)
    except KeyboardInterrupt:
        return


def tables(status: Status) -> RenderableType:
    """Everything, as one thing to print."""
    if not status.workers:
        return Text("No worker is known. Start one with `corral up`, or `corral worker` beside a broker.")
    blank = Text("")
    tables = [workers_table(status), slots_table(status), queue_table(status)]
    tables += [line_table(status)] if any(worker.line for worker in status.workers) else []
    tables += [wait_words(status)]
    tables += [store_table(status)] if any(worker.store for worker in status.workers) else []
    tables += [misses_table(status)] if status.misses else []
    return Group(*[part for table in tables for part in (table, blank)][:-1])


def workers_table(status: Status) -> RenderableType:
    """One line a worker."""
    table = console.grid(
        "Worker", "State", "Model", "Busy", "Window", "GPU", "Memory", right=("Busy", "Window", "Memory")
    )
    for worker in status.workers:
        busy = f"{sum(slot.busy for slot in worker.slots)}/{len(worker.slots)}"
        state = Text(worker.state, style=COLOUR_OF.get(worker.state, ""))
        memory = console.size(worker.engine_bytes) if worker.engine_bytes else "-"
        table.add_row(
            worker.name, state, worker.model or "-", busy, f"{worker.context_tokens}", worker.gpu or "-", memory
        )
        if worker.reason:
            table.add_row("", "", Text(worker.reason, style="dim"))
    return table


def slots_table(status: Status) -> RenderableType:
    """One line a slot: who holds it and how full it is."""
    table = console.grid("Worker", "Slot", "Agent", "Conversation", "Tokens", "", right=("Slot", "Tokens"))
    for worker in status.workers:
        for slot in worker.slots:
            table.add_row(*_slot_row(worker, slot))
    return table


def _slot_row(worker: Worker, slot: Slot) -> tuple[str, str, str, str, str, str]:
    held = slot.conversation is not None
    doing = "answering" if slot.busy else "idle" if held else "free"
    conversation = (slot.conversation or "-")[:CONVERSATION_LETTERS]
    return worker.name, f"{slot.slot}", slot.agent or "-", conversation, f"{slot.tokens}" if held else "-", doing


def queue_table(status: Status) -> RenderableType:
    """One line a worker: queued requests of each level, 0 first."""
    levels = [f"{level}" for level in range(10)]
    table = console.grid("Queued at level", *levels, right=tuple(levels))
    for worker in status.workers:
        table.add_row(worker.name, *(f"{count}" if count else "." for count in worker.queued))
    return table


def line_table(status: Status) -> RenderableType:
    """One line a queued request, in the order in which they are expected to be started."""
    columns = ("Place", "Level", "Waits for", "Starts in")
    table = console.grid("Waiting at", "Place", "Agent", *columns[1:], right=columns)
    for worker in status.workers:
        for one in worker.line:
            starts = "never" if one.expected_s is None else f"{one.expected_s:.0f} s"
            row = (f"{one.place}", one.agent, f"{one.level}", f"{one.waited_s:.0f} s", starts)
            table.add_row(worker.name, *row)
        if worker.line and (more := sum(worker.queued) - len(worker.line)) > 0:
            table.add_row("", "", Text(f"and {more} more", style="dim"))
    return table


def wait_words(status: Status) -> RenderableType:
    """How many wait, how right their expected waits are, and what became of those that could not."""
    wait = status.wait
    words = [f"Waiting in all: {status.waiting}"]
    if wait.waits:
        words.append(
            f"Expected starts: half within {wait.median_error_s:.1f} s, nine in ten within {wait.p90_error_s:.1f} s, "
            f"{wait.ratio:.2f} times the real wait (the last {wait.waits} that waited)"
        )
    long, full = wait.refused.get("wait", 0), wait.refused.get("full", 0)
    if long or full or wait.promises_open:
        words.append(
            f"Refused: {long} for a wait that is too long, {full} for a full line; {wait.promises_kept} came back and "
            f"were let in as promised, {wait.promises_open} may still come"
        )
    if wait.moved or status.coalesced:
        words.append(
            f"Moved to start sooner: {wait.moved}; answered together with an identical request: {status.coalesced}"
        )
    return Text("\n".join(words))


def store_table(status: Status) -> RenderableType:
    """One line a worker: whether it saves caches and restores them, or why not."""
    counts = ("Used", "Saves", "Restores", "Failures")
    table = console.grid("Saved caches of", "", *counts, right=counts)
    for worker in status.workers:
        if (store := worker.store) is not None:
            numbers = (store.saves, store.restores, store.failures)
            used = console.size(store.used_bytes)
            table.add_row(worker.name, "off" if store.off else "on", used, *(f"{number}" for number in numbers))
            if store.off:
                table.add_row("", Text(store.off, style="dim"))
    return table


def misses_table(status: Status) -> RenderableType:
    """One line a cause, the dearest first. `corral why` tells of single requests."""
    columns = ("Times", "Tokens read again", "Seconds")
    table = console.grid("Cache misses", *columns, right=columns)
    for cause, misses in sorted(status.misses.items(), key=lambda item: -item[1].tokens):
        words = cause.replace("_", " ")
        table.add_row(words, f"{misses.count}", f"{misses.tokens}", f"{misses.ms / 1000:.1f}")
    return table
