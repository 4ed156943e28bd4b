"""The requests that `corral top` shows.

Owns: the tables of running and recent requests, and where a request's time went as a bar of letters.
Never: asks for them, or shows anything else (`top`, `status`).
"""

from rich.text import Text

from infra.cli.fitted import Cell, Part
from infra.cli.gateway import Ended, Running, Status

SECOND_MS = 1000
WIDTH = 24  # of a bar
NAME_LETTERS = 24  # of an agent; a longer name would break its row in two
OUTLIER = 5  # times the median time: what took longer has a full bar, so that the others' can be read
STAGES = (("░", "yellow"), ("▒", "blue"), ("█", "green"))
LEGEND = "░queue ▒prefill █decode ·"  # the heading of the bars
# Left out on a narrow terminal, in this order.
SPARE = ("Wait told", "Real", "Prompt", "Output", "First token", LEGEND, "Cached", "In all")


def running_table(found: Status) -> Part:
    """One row a request that has not ended, the oldest first."""
    right = ("Prompt", "Cached", "Told", "Tokens/s", "For")
    rows = [_running_row(one) for one in found.running]
    return Part(("Running", "At", "Now", *right), rows, right=right, spare=("Cached", "Prompt"))


def _running_row(one: Running) -> tuple[Cell, ...]:
    at = f"{one.worker}/{one.slot}" if one.slot is not None else one.worker
    now = "waits" if one.queue_ms is None else "answers" if one.told else "prefills"
    now = "waits again" if one.waits_again else now
    prompt = ("", "") if one.prompt_tokens is None else (f"{one.prompt_tokens}", percent(one))
    return name(one), at or "-", now, *prompt, f"{one.told or ''}", f"{one.per_s or ''}", seconds(one.took_ms)


def recent_table(found: Status) -> Part:
    """One row a request that has ended, the newest first."""
    times = sorted(one.took_ms for one in found.recent)
    longest = min(times[-1], OUTLIER * times[len(times) // 2]) if times else 0
    right = ("First token", "In all", "Wait told", "Real", "Prompt", "Cached", "Output")
    rows = [_recent_row(one, longest) for one in found.recent]
    return Part(("Recent", "End", LEGEND, *right, "Miss"), rows, right=right, spare=SPARE)


def _recent_row(one: Ended, longest_ms: int) -> tuple[Cell, ...]:
    failed = one.outcome == "failed"
    why = one.reason if failed else one.stop_reason or one.outcome
    end = Text(why.replace("_", " "), style="red" if failed else "")
    prompt = ("", "") if one.prompt_tokens is None else (f"{one.prompt_tokens}", percent(one))
    first, told, real = ("" if ms is None else seconds(ms) for ms in (one.first_ms, one.eta_ms, one.queue_ms))
    miss = "" if one.miss in ("", "none") else one.miss.replace("_", " ")
    output = "" if one.output_tokens is None else f"{one.output_tokens}"
    drawn = bar(one, max(longest_ms, one.took_ms))
    return name(one), end, drawn, first, seconds(one.took_ms), told, real, *prompt, output, miss


def bar(one: Ended, longest_ms: int) -> Text:
    """Queue, prefill, decode and all else, as long as the request took beside the longest one."""
    text, used = Text(), 0
    whole = round(WIDTH * one.took_ms / longest_ms) if longest_ms else 0
    for (letter, colour), ms in zip(STAGES, stages(one), strict=True):
        length = min(whole - used, round(WIDTH * ms / max(1, longest_ms)))
        text.append(letter * length, style=colour)
        used += length
    return text.append("·" * (whole - used), style="dim")


def stages(one: Ended) -> tuple[int, int, int]:
    """Queue, prefill and decode, in ms. The engine tells no times of an answer that was left: what came before its
    first token was prefill then, and what came after it decode."""
    if one.queue_ms is None or one.prefill_ms is not None:
        return one.queue_ms or 0, one.prefill_ms or 0, one.decode_ms or 0
    first_ms = one.took_ms if one.first_ms is None else one.first_ms
    return one.queue_ms, max(0, first_ms - one.queue_ms), max(0, one.took_ms - first_ms)


def name(one: Running) -> str:
    """The agent, as far as a row has room for it."""
    agent = one.agent or "-"
    return agent if len(agent) <= NAME_LETTERS else agent[: NAME_LETTERS - 1] + "…"


def percent(one: Running) -> str:
    """The share of the prompt that was found in a cache."""
    return f"{100 * one.cached_tokens / one.prompt_tokens:.0f} %" if one.prompt_tokens else "-"


def seconds(ms: int) -> str:
    return f"{ms} ms" if ms < SECOND_MS else f"{ms / SECOND_MS:.1f} s"
