"""`corral top`: the cluster and its requests, live in a terminal.

Owns: the tables of running and recent requests, and where a request's time went as a bar of letters.
Never: the tables that `corral status` shows too; /ui is the same in a browser.
"""

import time

from rich.live import Live
from rich.text import Text

from infra.cli import console, gateway, options, status
from infra.cli.fitted import Cell, Fitted, Part
from infra.cli.gateway import Ended, Gateway, Running, Status
from infra.errors import ConfigError

EVERY_S = 1.0
SECOND_MS = 1000
WIDTH = 24  # of a bar
STAGES = (("queue_ms", "░", "yellow"), ("prefill_ms", "▒", "blue"), ("decode_ms", "█", "green"))
LEGEND = "░ queue, ▒ prefill, █ decode, · all else"


def top(url: options.Url = None, key: options.Key = None) -> None:
    """Watch workers, running streams, queues and recent requests, until Ctrl-C."""
    if not console.out.is_terminal:
        raise ConfigError("`corral top` needs a terminal; use `corral status --watch` or `corral status --json`")
    settings = options.load_with().settings
    with Gateway(url or gateway.address(settings), gateway.key(settings, key)) as client:
        try:
            first = shown(client.status(requests=True))
            with Live(first, console=console.out, auto_refresh=False, screen=True) as live:
                while True:
                    time.sleep(EVERY_S)
                    live.update(shown(client.status(requests=True)), refresh=True)
        except KeyboardInterrupt:
            return


def shown(found: Status) -> Fitted:
    """As much of everything as the terminal is high."""
    tables = status.parts(found)
    words = status.wait_words(found).append(f"\nWhere time went: {LEGEND}", style="dim")
    return Fitted(words, [tables[0], running_table(found), recent_table(found), *tables[1:]])


def running_table(found: Status) -> Part:
    """One row a request that has not ended, the oldest first."""
    right = ("Prompt", "Cached", "Told", "Tokens/s", "For")
    return Part(("Running", "At", "Now", *right), [_running_row(one) for one in found.running], right=right)


def _running_row(one: Running) -> tuple[Cell, ...]:
    at = f"{one.worker}/{one.slot}" if one.slot is not None else one.worker
    now = "waits" if one.queue_ms is None else "answers" if one.told else "prefills"
    prompt = ("", "") if one.prompt_tokens is None else (f"{one.prompt_tokens}", percent(one))
    return one.agent or "-", at or "-", now, *prompt, f"{one.told or ''}", f"{one.per_s or ''}", seconds(one.took_ms)


def recent_table(found: Status) -> Part:
    """One row a request that has ended, the newest first."""
    longest = max((one.took_ms for one in found.recent), default=0)
    right = ("First token", "In all", "Prompt", "Cached", "Output")
    rows = [_recent_row(one, longest) for one in found.recent]
    return Part(("Recent", "End", "Where its time went", *right, "Miss"), rows, right=right)


def _recent_row(one: Ended, longest_ms: int) -> tuple[Cell, ...]:
    failed = one.outcome == "failed"
    why = one.reason if failed else one.stop_reason or one.outcome
    end = Text(why.replace("_", " "), style="red" if failed else "")
    prompt = ("", "") if one.prompt_tokens is None else (f"{one.prompt_tokens}", percent(one))
    first = "" if one.first_ms is None else seconds(one.first_ms)
    miss = "" if one.miss in ("", "none") else one.miss.replace("_", " ")
    output = "" if one.output_tokens is None else f"{one.output_tokens}"
    return one.agent or "-", end, bar(one, longest_ms), first, seconds(one.took_ms), *prompt, output, miss


def bar(one: Ended, longest_ms: int) -> Text:
    """Queue, prefill, decode and all else, as long as the request took beside the longest one."""
    text, used = Text(), 0
    whole = round(WIDTH * one.took_ms / longest_ms) if longest_ms else 0
    for name, letter, colour in STAGES:
        length = min(whole - used, round(WIDTH * (getattr(one, name) or 0) / max(1, longest_ms)))
        text.append(letter * length, style=colour)
        used += length
    return text.append("·" * (whole - used), style="dim")


def percent(one: Running) -> str:
    """The share of the prompt that was found in a cache."""
    return f"{100 * one.cached_tokens / one.prompt_tokens:.0f} %" if one.prompt_tokens else "-"


def seconds(ms: int) -> str:
    return f"{ms} ms" if ms < SECOND_MS else f"{ms / SECOND_MS:.1f} s"
