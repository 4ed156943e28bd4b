"""Why a turn did not find all of its conversation's last turn in the engine's cache.

Owns: what a turn should have reused, what it lost of that, and the one cause that is named for it.
Never: the words (`sentences`), a store, a clock.

A turn that only adds to the last one reuses that one's prompt and answer. What is missing of that has two parts: the
client changed the text (no cache could have helped), or the text stood and the cache did not. The larger part is named.
A compaction is meant to replace the text, so of it only what stood and was not found counts as lost.
"""

from bisect import bisect_right
from dataclasses import dataclass, replace
from enum import StrEnum

from scheduler.contract import Gone, Kind, Started
from scheduler.policy.chain import Chain, common_messages, fingerprint

LEAST_MISS_TOKENS = 32  # ends of turns and the engine's granularity; no loss that anybody feels
LEAST_MISS_SHARE = 0.01
MOST_MESSAGES = 2000
MOST_MARKS = 64
SHORTER = 0.7  # a prompt this much shorter than the last was cut, not edited


class Cause(StrEnum):
    """Why tokens were read again. The first three are no fault of anybody."""

    NONE = "none"
    FIRST_TURN = "first_turn"
    SIDE_CALL = "side_call"
    MODEL_CHANGED = "model_changed"
    TOOLS_CHANGED = "tools_changed"
    SYSTEM_CHANGED = "system_changed"
    COMPACTION = "compaction"
    HISTORY = "history_rewritten"
    MOVED = "moved"
    RESTARTED = "restarted"
    EVICTED = "evicted"
    IDLE = "idle"
    COPY = "copy"
    TEMPLATE = "template"
    ENGINE = "engine"


@dataclass(frozen=True, slots=True)
class Turn:
    """An answered request, as the next one of its conversation is compared with it.

    `folded` first messages of its chain stand there as one. `marks` are exact sizes: after so many messages the prompt
    had so many tokens. `thought_at_tokens` is where the first answer with thinking begins. `ended_ms` is the broker's
    clock.
    """

    request: str
    conversation: str
    chain: Chain
    folded: int
    model: str
    asked_model: str
    worker: str
    engine_run: str
    prompt_tokens: int
    output_tokens: int
    thought_at_tokens: int | None
    ended_ms: int
    marks: tuple[tuple[int, int], ...] = ()

    @property
    def hidden(self) -> int:
        """Messages that stand in its chain only inside of another one."""
        return max(0, self.folded - 1)


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of this turn at its end. `summarised`: its first message is a client's summary of a longer past.

    Points in time are the broker's clock. `prefill_ms` is what reading the tokens that were not cached took;
    `store_off` why the worker saves no caches.
    """

    request: str
    conversation: str
    kind: Kind
    chain: Chain
    summarised: bool
    model: str
    asked_model: str
    started: Started
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    prefill_ms: int
    thought: bool
    begun_ms: int
    ended_ms: int
    store_off: str = ""


@dataclass(frozen=True, slots=True)
class Account:
    """`lost_tokens` of the `expected_tokens` were read again, which took `lost_ms`; `where` the text changed.

    `replaced_tokens` of the last prompt do not stand in this one, because a compaction put a summary in their place.
    """

    cause: Cause
    expected_tokens: int = 0
    lost_tokens: int = 0
    lost_ms: int = 0
    where: str = ""
    replaced_tokens: int = 0


def explain(last: Turn | None, seen: Seen) -> Account:
    """The account of a turn whose conversation's last one was `last`, or its line's when it has none of its own."""
    if last is None or not _continues(last, seen):
        return Account(Cause.SIDE_CALL if seen.kind is Kind.SIDE else Cause.FIRST_TURN)
    expected = _expected_tokens(last, seen)
    lost = max(0, expected - seen.cached_tokens)
    account = Account(Cause.NONE, expected, lost, _lost_ms(lost, seen))
    if lost <= _slack(expected):
        return account
    possible = 0 if last.model != seen.model else min(expected, _possible_tokens(last, seen))
    by_client = expected - max(possible, seen.cached_tokens)
    if by_client >= lost - by_client:
        cause, where = _client_cause(last, seen)
        if cause is Cause.COMPACTION:
            return _compacted(last, seen, expected, possible)
    else:
        cause, where = _cache_cause(last, seen), ""
    return replace(account, cause=cause, where=where)


def turn(last: Turn | None, seen: Seen) -> Turn:
    """What is kept of this turn for the next one."""
    count = len(seen.chain.messages)
    folded = count - MOST_MESSAGES + 1 if count > MOST_MESSAGES else 0
    marks, thoughts = [], [seen.prompt_tokens] if seen.thought else []
    if last is not None and last.model == seen.model:
        kept = _common_messages(last, seen)
        marks = [mark for mark in last.marks if folded <= mark[0] <= kept and mark[0] < count]
        if last.thought_at_tokens is not None and last.thought_at_tokens <= _possible_tokens(last, seen):
            thoughts.append(last.thought_at_tokens)
    return Turn(
        request=seen.request,
        conversation=seen.conversation,
        chain=fold(seen.chain, folded),
        folded=folded,
        model=seen.model,
        asked_model=seen.asked_model,
        worker=seen.started.worker,
        engine_run=seen.started.engine_run,
        prompt_tokens=seen.prompt_tokens,
        output_tokens=seen.output_tokens,
        thought_at_tokens=min(thoughts, default=None),
        ended_ms=seen.ended_ms,
        marks=(*marks, (count, seen.prompt_tokens))[-MOST_MARKS:],
    )


def fold(chain: Chain, count: int) -> Chain:
    """The chain with its first `count` messages as one; fewer messages than that are folded whole."""
    if not count:
        return chain
    first = fingerprint(*chain.messages[:count])
    messages = (first, *chain.messages[count:])
    return replace(chain, messages=messages, characters=(chain.characters[0], *chain.characters[count:]))


def _continues(last: Turn, seen: Seen) -> bool:
    """Whether this is the same conversation at all. An agent's name or session may begin another one at any time."""
    if seen.summarised or _common_messages(last, seen) > 0:
        return True
    return not set(last.chain.messages).isdisjoint(fold(seen.chain, last.folded).messages)


def _expected_tokens(last: Turn, seen: Seen) -> int:
    # At least one token of a prompt is always read.
    return max(0, min(last.prompt_tokens + last.output_tokens, seen.prompt_tokens - 1))


def _possible_tokens(last: Turn, seen: Seen) -> int:
    """Tokens of the last prompt and answer that stand unchanged at the beginning of this prompt."""
    common = _common_messages(last, seen)
    if common < 0:
        return 0
    if common == len(last.chain.messages) + last.hidden:
        return last.prompt_tokens + last.output_tokens
    return _tokens_at(last, common)


def _common_messages(last: Turn, seen: Seen) -> int:
    """How many first messages are alike, folded ones counted one by one; -1 when already the bases differ."""
    common = common_messages(last.chain, fold(seen.chain, last.folded))
    return common + last.hidden if common > 0 else common


def _tokens_at(last: Turn, count: int) -> int:
    """Tokens of the base and the first `count` messages: exact at a mark, by characters between two of them."""
    sizes = last.chain.characters
    here = sizes[max(0, count - last.hidden)]
    points = [(0, 0), *((sizes[number - last.hidden], tokens) for number, tokens in last.marks)]
    after = bisect_right(points, here, key=lambda point: point[0])
    before = points[after - 1]
    if after == len(points):
        return before[1]
    return before[1] + (points[after][1] - before[1]) * (here - before[0]) // (points[after][0] - before[0])


def _compacted(last: Turn, seen: Seen, expected: int, possible: int) -> Account:
    """The account of a compaction after which `possible` tokens of the last prompt stand. That size is an estimate."""
    found = min(expected, seen.cached_tokens)
    stands = max(possible, found)
    if stands - found <= _slack(stands):
        stands = found
    lost = stands - found
    replaced = max(0, last.prompt_tokens - stands)
    return Account(Cause.COMPACTION, stands, lost, _lost_ms(lost, seen), _place(0), replaced)


def _client_cause(last: Turn, seen: Seen) -> tuple[Cause, str]:
    changed = [name for name in ("system", "tools") if getattr(last.chain, name) != getattr(seen.chain, name)]
    if last.model != seen.model or (changed and last.asked_model != seen.asked_model):
        return Cause.MODEL_CHANGED, ", ".join(changed)
    if changed:
        return Cause.TOOLS_CHANGED if "tools" in changed else Cause.SYSTEM_CHANGED, ", ".join(changed)
    common = _common_messages(last, seen)
    if common == 0 and (seen.summarised or seen.prompt_tokens < SHORTER * last.prompt_tokens):
        return Cause.COMPACTION, _place(0)
    return Cause.HISTORY, _place(common)


def _place(message: int) -> str:
    return f"messages[{message}]"  # the API's own path of the field


_GONE: dict[Gone, Cause] = {
    Gone.EVICTED: Cause.EVICTED,
    Gone.NEW: Cause.EVICTED,  # so long ago that the worker has forgotten it
    Gone.IDLE: Cause.IDLE,
    Gone.COPY: Cause.COPY,
}


def _cache_cause(last: Turn, seen: Seen) -> Cause:
    started = seen.started
    if started.worker != last.worker:
        return Cause.MOVED
    if started.engine_run != last.engine_run:
        return Cause.RESTARTED
    if started.gone is not Gone.HERE:
        return _GONE[started.gone]
    begins = [last.prompt_tokens, *([] if last.thought_at_tokens is None else [last.thought_at_tokens])]
    if seen.cached_tokens >= min(begins) - _slack(last.prompt_tokens):
        return Cause.TEMPLATE
    return Cause.ENGINE


def _slack(tokens: int) -> float:
    return max(LEAST_MISS_TOKENS, LEAST_MISS_SHARE * tokens)


def _lost_ms(lost_tokens: int, seen: Seen) -> int:
    read = seen.prompt_tokens - seen.cached_tokens
    return round(seen.prefill_ms * min(lost_tokens, read) / read) if read > 0 else 0
