"""The account of a turn in words.

Owns: one sentence for each cause, and what to do about it.
Never: judges (`misses`).
"""

from scheduler.contract import Source
from scheduler.policy.misses import Account, Cause, Seen, Turn

NOTHING_TO_DO = "Nothing."
LONGEST_IN_SECONDS = 120
LOOK_AT_STORE = (
    "See the saved caches of the worker in `corral status`: whether they are on, have room, and did not fail."
)

_WHY: dict[Cause, str] = {
    Cause.NONE: "The last turn was found in the cache",
    Cause.FIRST_TURN: "This is the first turn of its conversation",
    Cause.SIDE_CALL: "This is a side call (title, summary, classifier) with a prompt of its own",
    Cause.MODEL_CHANGED: "The client asked for {asked} after {asked_before}{with_it}, which the cache does not fit",
    Cause.TOOLS_CHANGED: "The client changed its {where} since {request}, and the cache ends where the text differs",
    Cause.SYSTEM_CHANGED: "The client changed its system text since {request}, and the cache ends where it differs",
    Cause.COMPACTION: "The client compacted its history since {request}",
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
    Cause.COMPACTION: "Nothing, if you asked for it (/compact). If the client did so by itself, its window was full: "
    "a larger one (--context) makes that rarer.",
    Cause.HISTORY: "Look for what edits earlier messages: hooks, reminders, context editing of the client.",
    Cause.MOVED: f"{LOOK_AT_STORE} If all is well there: conversations move when a worker is stopped or full, and more "
    "slots (--slots) or workers make that rarer.",
    Cause.RESTARTED: f"The worker's log says why its engine ended. {LOOK_AT_STORE}",
    Cause.EVICTED: f"{LOOK_AT_STORE} If all is well there: more slots (--slots) or workers.",
    Cause.IDLE: f"{LOOK_AT_STORE} If all is well there: raise idle_slot_s.",
    Cause.COPY: "More slots (--slots) if one conversation often asks twice at once.",
    Cause.TEMPLATE: "Use a chat template that keeps the thinking of earlier turns, or ask without thinking.",
    Cause.ENGINE: "Models with full attention can go back to any token; for others keep the history append-only.",
}


_ITS_OWN = {Source.OWN: "cache", Source.SAVED: "saved cache"}


def sentence(account: Account, seen: Seen, last: Turn | None) -> str:
    """One sentence: what happened, then what it cost."""
    why = _WHY[account.cause]
    if account.cause is Cause.FIRST_TURN and last is None and seen.started.source in _ITS_OWN:
        why = "No earlier turn of this conversation is remembered"
    return f"{why.format(**_names(account, seen, last))}: {_cost(account, seen, last)}."


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
            "idle": _duration((seen.begun_ms - last.ended_ms) / 1000),
            "thinking": "" if last.thought_at_tokens is None else " (it drops the thinking of earlier turns)",
        }
    return names


def _cost(account: Account, seen: Seen, last: Turn | None) -> str:
    if account.cause in (Cause.FIRST_TURN, Cause.SIDE_CALL):
        return f"{_giver(seen, last)} of its {_tokens(seen.prompt_tokens)}"
    if account.cause is Cause.COMPACTION:
        return f"{_replaced(account)}{_restored(seen)}{_read_again(account)}"
    cached, expected = seen.cached_tokens, _tokens(account.expected_tokens)
    reused = f"{_number(cached)} of {expected} {_were(cached)} reused{_restored(seen)}"
    return reused if account.cause is Cause.NONE else f"{reused}{_read_again(account)}"


def _replaced(account: Account) -> str:
    gone, stands = account.replaced_tokens, account.expected_tokens
    reused = stands - account.lost_tokens
    replaced = f"{_tokens(gone)} of the old prompt {'is' if gone == 1 else 'are'} replaced"
    return f"{replaced}, {_number(reused)} of its other {_tokens(stands)} {_were(reused)} reused"


def _read_again(account: Account) -> str:
    lost = account.lost_tokens
    return f", {_number(lost)} {_were(lost)} read again in {account.lost_ms / 1000:.1f} s" if lost else ""


def _giver(seen: Seen, last: Turn | None) -> str:
    if not seen.cached_tokens:
        return "no cache held any"
    cached, source = _number(seen.cached_tokens), seen.started.source
    if source is Source.BASE:
        return f"the saved base of system text and tools gave {cached}"
    if source in _ITS_OWN:
        whose = "its own" if last is None else "its agent's earlier"
        return f"{whose} {_ITS_OWN[source]} gave {cached}"
    return f"the cache of another conversation with the same beginning gave {cached}"


def _restored(seen: Seen) -> str:
    restored = seen.started.restored_tokens
    return f" (a saved cache of {_number(restored)} was restored)" if restored else ""


def _tokens(count: int) -> str:
    return f"{_number(count)} token{'' if count == 1 else 's'}"


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def _number(count: int) -> str:
    return f"{count:,}"


def _duration(seconds: float) -> str:
    whole = max(0, round(seconds))
    return f"{whole} s" if whole < LONGEST_IN_SECONDS else f"{whole // 60} min"
