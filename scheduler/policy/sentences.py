"""The account of a turn in words.

Owns: one sentence for each cause, and what to do about it.
Never: judges (`misses`).
"""

from scheduler.contract import Source
from scheduler.policy.misses import Account, Cause, Seen, Turn

NOTHING_TO_DO = "Nothing."
LONGEST_IN_SECONDS = 120

_WHY: dict[Cause, str] = {
    Cause.NONE: "The last turn was found in the cache",
    Cause.FIRST_TURN: "This is the first turn of its conversation",
    Cause.SIDE_CALL: "This is a side call (title, summary, classifier) with a prompt of its own",
    Cause.MODEL_CHANGED: "The client asked for {asked} after {asked_before}{with_it}, which the cache does not fit",
    Cause.TOOLS_CHANGED: "The client changed its {where} since {request}, and the cache ends where the text differs",
    Cause.SYSTEM_CHANGED: "The client changed its system text since {request}, and the cache ends where it differs",
    Cause.COMPACTION: "The client compacted its history: a summary took the place of the {old} tokens of {request}",
    Cause.HISTORY: "The client rewrote its history from {where} on, so what followed it in {request} is of no use",
    Cause.MOVED: "The conversation moved from worker {worker_before} to {worker}, which did not have its cache",
    Cause.RESTARTED: "The engine of worker {worker} was started anew since {request}, and its cache was lost",
    Cause.EVICTED: "Another conversation took its slot on worker {worker} within the {idle} since its last turn",
    Cause.IDLE: "The slot on worker {worker} was freed after {idle} without a request",
    Cause.COPY: "Another request of the same conversation was being answered in its slot on worker {worker}",
    Cause.TEMPLATE: "The model's chat template does not write the history back as it was generated{thinking}",
    Cause.ENGINE: "The engine of worker {worker} kept less of its cache than the text allowed{off}",
}

_TO_DO: dict[Cause, str] = {
    Cause.MODEL_CHANGED: "Keep one model for a session; give subagents and side calls another, not the main line.",
    Cause.TOOLS_CHANGED: "Keep the list of tools fixed within a session: MCP servers that come and go change it, and "
    "so do other --tools or --disallowedTools on a session that is resumed.",
    Cause.SYSTEM_CHANGED: "Keep the system text fixed within a session: no clock, no git status, no list that grows.",
    Cause.COMPACTION: "A larger window (--context) makes compactions rarer.",
    Cause.HISTORY: "Look for what edits earlier messages: hooks, reminders, context editing of the client.",
    Cause.MOVED: "Let the workers share a store of saved caches (store_dir); workers that are stopped or full make "
    "conversations move.",
    Cause.RESTARTED: "The worker's log says why its engine ended. With a store (store_dir) caches outlive it.",
    Cause.EVICTED: "More slots (--slots) or more workers for so many conversations at once, or a store (store_dir).",
    Cause.IDLE: "Raise idle_slot_s, or let a store (store_dir) keep what is freed.",
    Cause.COPY: "More slots (--slots) if one conversation often asks twice at once.",
    Cause.TEMPLATE: "Use a chat template that keeps the thinking of earlier turns, or ask without thinking.",
    Cause.ENGINE: "Models with full attention can go back to any token; for others keep the history append-only.",
}


def sentence(account: Account, seen: Seen, last: Turn | None) -> str:
    """One sentence: what happened, then what it cost."""
    return f"{_WHY[account.cause].format(**_names(account, seen, last))}: {_cost(account, seen)}."


def to_do(account: Account) -> str:
    """What to do about it."""
    return _TO_DO.get(account.cause, NOTHING_TO_DO)


def _names(account: Account, seen: Seen, last: Turn | None) -> dict[str, str]:
    names = {
        "where": account.where.replace("system, tools", "system text and tools"),
        "worker": seen.started.worker,
        "asked": seen.asked_model,
        "with_it": " and changed system text or tools with it" if account.where else "",
        "thinking": " (it drops the thinking)" if seen.thought else "",
        "off": f" ({seen.store_off})" if seen.store_off else "",
    }
    if last is not None:
        names |= {
            "request": last.request,
            "asked_before": last.asked_model,
            "worker_before": last.worker,
            "old": _number(last.prompt_tokens),
            "idle": _duration((seen.begun_ms - last.ended_ms) / 1000),
            "thinking": "" if last.thought_at_tokens is None else " (it drops the thinking of earlier turns)",
        }
    return names


def _cost(account: Account, seen: Seen) -> str:
    if account.cause in (Cause.FIRST_TURN, Cause.SIDE_CALL):
        return f"{_shared(seen)} of its {_number(seen.prompt_tokens)} tokens"
    reused = f"{_number(seen.cached_tokens)} of {_number(account.expected_tokens)} tokens were reused{_restored(seen)}"
    if account.cause is Cause.NONE:
        return reused
    seconds = f"{account.lost_ms / 1000:.1f}"
    return f"{reused}, {_number(account.lost_tokens)} were read again in {seconds} s"


def _shared(seen: Seen) -> str:
    if not seen.cached_tokens:
        return "no cache held any"
    cached = _number(seen.cached_tokens)
    if seen.started.source is Source.BASE:
        return f"the saved base of system text and tools gave {cached}"
    return f"the cache of another conversation with the same beginning gave {cached}"


def _restored(seen: Seen) -> str:
    restored = seen.started.restored_tokens
    return f" (a saved cache of {_number(restored)} was restored)" if restored else ""


def _number(count: int) -> str:
    return f"{count:,}"


def _duration(seconds: float) -> str:
    whole = max(0, round(seconds))
    return f"{whole} s" if whole < LONGEST_IN_SECONDS else f"{whole // 60} min"
