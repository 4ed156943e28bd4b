"""Why a turn's cache was missed: one cause for each, and numbers that add up."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.contract import Gone, Kind, Source, Started
from scheduler.policy import misses, sentences
from scheduler.policy.chain import Chain
from scheduler.policy.misses import (
    LEAST_MISS_TOKENS,
    MOST_MARKS,
    MOST_MESSAGES,
    Account,
    Cause,
    Seen,
    Turn,
    explain,
    fold,
    turn,
)

pytestmark = pytest.mark.unit

TOKENS_A_MESSAGE = 1_000
BASE_TOKENS = 20_000


def chain(*messages: str, system: str = "s", tools: str = "t") -> Chain:
    """Each message and the base count four characters a token."""
    sizes = (4 * (BASE_TOKENS + TOKENS_A_MESSAGE * number) for number in range(len(messages) + 1))
    return Chain(system, tools, tuple(messages), tuple(sizes))


def seen(*messages: str, **changes: Any) -> Seen:
    """A turn of these messages; by default everything but the last message came from the cache."""
    of_chain = {name: changes.pop(name) for name in ("system", "tools") if name in changes}
    of_started = {name: changes.pop(name) for name in ("worker", "gone", "engine_run", "source") if name in changes}
    prompt_tokens = BASE_TOKENS + TOKENS_A_MESSAGE * len(messages)
    values: dict[str, Any] = {
        "request": f"req_{len(messages)}",
        "conversation": "c",
        "kind": Kind.MAIN,
        "chain": chain(*messages, **of_chain),
        "summarised": False,
        "model": "m",
        "asked_model": "m",
        "started": replace(Started("w1", 0, 1, 0, 1, 0, gone=Gone.HERE, engine_run="r1"), **of_started),
        "prompt_tokens": prompt_tokens,
        "cached_tokens": prompt_tokens - TOKENS_A_MESSAGE,
        "output_tokens": TOKENS_A_MESSAGE,
        "prefill_ms": 1_000,
        "thought": False,
        "begun_ms": 60_000,
        "ended_ms": 70_000,
    }
    return Seen(**(values | changes))


FIRST = turn(None, seen("a"))
LAST = turn(FIRST, seen("a", "b", "c"))


def cause(*messages: str, last: Turn | None = LAST, **changes: Any) -> Cause:
    return explain(last, seen(*messages, **changes)).cause


# --- what is no miss ----------------------------------------------------------------------------------------------


def test_a_turn_that_finds_the_last_prompt_and_answer_has_lost_nothing() -> None:
    account = explain(LAST, seen("a", "b", "c", "d", "e"))
    assert (account.cause, account.expected_tokens, account.lost_tokens) == (Cause.NONE, 24_000, 0)


@pytest.mark.parametrize(("lost", "is_miss"), [(LEAST_MISS_TOKENS, False), (240, False), (241, True)])
def test_the_end_of_a_turn_is_no_miss(lost: int, is_miss: bool) -> None:
    account = explain(LAST, seen("a", "b", "c", "d", "e", cached_tokens=24_000 - lost))
    assert (account.lost_tokens, account.cause is not Cause.NONE) == (lost, is_miss)


@pytest.mark.parametrize("last", [None, FIRST])
def test_a_conversation_that_shares_no_message_is_a_new_one(last: Turn | None) -> None:
    account = explain(last, seen("other", cached_tokens=0))
    assert (account.cause, account.expected_tokens, account.lost_tokens) == (Cause.FIRST_TURN, 0, 0)


def test_the_first_turn_says_what_came_from_a_shared_base() -> None:
    taken = seen("a", cached_tokens=19_500, source=Source.SHARED)
    assert "gave 19,500 of its 21,000 tokens" in sentences.sentence(explain(None, taken), taken, None)


@pytest.mark.parametrize(
    ("source", "last", "words"),
    [
        (Source.SAVED, None, "No earlier turn of this conversation is remembered: its own saved cache gave 19,500 of"),
        (Source.OWN, None, "No earlier turn of this conversation is remembered: its own cache gave 19,500 of"),
        (Source.SAVED, LAST, "This is the first turn of its conversation: its agent's earlier saved cache gave 19,500"),
        (Source.BASE, None, "This is the first turn of its conversation: the saved base of system text and tools gave"),
        (Source.SHARED, None, "the cache of another conversation with the same beginning gave 19,500 of"),
    ],
)
def test_the_first_turn_names_the_cache_that_was_of_use(source: Source, last: Turn | None, words: str) -> None:
    taken = seen("other", cached_tokens=19_500, source=source)
    assert words in sentences.sentence(explain(last, taken), taken, last)


def test_a_side_call_is_told_as_one() -> None:
    assert cause("title please", last=LAST, kind=Kind.SIDE, cached_tokens=0) is Cause.SIDE_CALL


def test_a_prompt_asked_again_misses_only_what_is_always_read() -> None:
    account = explain(LAST, seen("a", "b", "c", cached_tokens=22_999))
    assert (account.cause, account.lost_tokens) == (Cause.NONE, 0)


# --- what the client changed --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "expected", "where"),
    [
        ({"system": "s2"}, Cause.SYSTEM_CHANGED, "system"),
        ({"tools": "t2"}, Cause.TOOLS_CHANGED, "tools"),
        ({"system": "s2", "tools": "t2"}, Cause.TOOLS_CHANGED, "system, tools"),
        ({"model": "m2", "asked_model": "m2"}, Cause.MODEL_CHANGED, ""),
        ({"system": "s2", "asked_model": "m2"}, Cause.MODEL_CHANGED, "system"),
    ],
)
def test_a_change_before_the_messages_is_named(changes: dict[str, str], expected: Cause, where: str) -> None:
    account = explain(LAST, seen("a", "b", "c", "d", "e", cached_tokens=0, **changes))
    assert (account.cause, account.where, account.lost_tokens) == (expected, where, 24_000)


def test_another_name_for_the_same_model_changes_nothing() -> None:
    assert cause("a", "b", "c", "d", "e", asked_model="m2") is Cause.NONE


def test_a_message_that_was_rewritten_is_named_with_what_it_cost() -> None:
    rewritten = seen("a", "B", "c", "d", "e", cached_tokens=21_000)
    account = explain(LAST, rewritten)
    assert (account.cause, account.where, account.lost_tokens) == (Cause.HISTORY, "messages[1]", 3_000)
    assert "rewrote its history from messages[1] on" in sentences.sentence(account, rewritten, LAST)
    assert account.lost_ms == 750  # three of the four thousand tokens that took 1 s


def test_the_turn_after_a_compaction_is_told_apart_from_a_rewritten_one() -> None:
    long = turn(None, seen(*"abcdefghijklmnopqrstuvwxyz"))
    assert cause("summary", "x", "y", last=long, summarised=True, cached_tokens=20_000) is Cause.COMPACTION
    assert cause("summary", "y", "z", last=long, cached_tokens=20_000) is Cause.COMPACTION
    assert cause("S", *"bcdefghijklmnopqrstuvwxyz", last=long, cached_tokens=20_000) is Cause.HISTORY
    assert cause("anew", last=long, cached_tokens=20_000) is Cause.FIRST_TURN


@pytest.mark.parametrize(
    ("cached", "lost", "reused", "read_again"),
    [
        (20_000, 0, "20,000 of its other 20,000 tokens were reused", ""),
        (19_850, 0, "19,850 of its other 19,850 tokens were reused", ""),  # where the base ends is an estimate
        (19_000, 1_000, "19,000 of its other 20,000 tokens were reused", ", 1,000 were read again in 0.2 s"),
    ],
)
def test_a_compaction_has_lost_only_what_stood_and_was_not_found(
    cached: int, lost: int, reused: str, read_again: str
) -> None:
    long = turn(None, seen(*"abcdefghijklmnopqrstuvwxyz"))
    this = seen("summary", "x", "y", "z", summarised=True, cached_tokens=cached)
    account = explain(long, this)
    assert (account.cause, account.lost_tokens, account.where) == (Cause.COMPACTION, lost, "messages[0]")
    assert account.replaced_tokens == 46_000 - account.expected_tokens
    replaced = f"{account.replaced_tokens:,} tokens of the old prompt are replaced"
    assert sentences.sentence(account, this, long) == (
        f"The client compacted its history since req_26: {replaced}, {reused}{read_again}."
    )


def test_advice_on_a_compaction_is_right_whoever_asked_for_it() -> None:
    words = sentences.to_do(Account(Cause.COMPACTION))
    assert words.startswith("Nothing, if you asked for it (/compact).")
    assert "by itself" in words


def test_a_compaction_itself_finds_the_old_prefix() -> None:
    long = turn(None, seen(*"abcdefghijklmnopqrstuvwxyz"))
    assert cause(*"abcdefghijklmnopqrstuvwxy", "summarise", last=long, cached_tokens=45_900) is not Cause.COMPACTION


# --- what the cache lost ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"worker": "w2", "gone": Gone.NEW, "engine_run": "r2"}, Cause.MOVED),
        ({"gone": Gone.NEW, "engine_run": "r2"}, Cause.RESTARTED),
        ({"gone": Gone.EVICTED}, Cause.EVICTED),
        ({"gone": Gone.NEW}, Cause.EVICTED),
        ({"gone": Gone.IDLE}, Cause.IDLE),
        ({"gone": Gone.COPY}, Cause.COPY),
        ({"gone": Gone.HERE}, Cause.ENGINE),
        ({"gone": Gone.HERE, "cached_tokens": 22_990}, Cause.TEMPLATE),
    ],
)
def test_a_cache_that_was_not_there_is_told_why(changes: dict[str, Any], expected: Cause) -> None:
    assert cause("a", "b", "c", "d", "e", **({"cached_tokens": 300} | changes)) is expected


@pytest.mark.parametrize("kind", [Cause.MOVED, Cause.RESTARTED, Cause.EVICTED, Cause.IDLE])
def test_a_store_is_to_be_looked_at_and_never_recommended(kind: Cause) -> None:
    words = sentences.to_do(Account(kind))
    assert "the saved caches of the worker in `corral status`" in words
    assert "store_dir" not in words


def test_thinking_that_is_dropped_from_an_earlier_answer_is_the_templates_doing() -> None:
    thinking = turn(None, seen("a", thought=True))
    last = turn(thinking, seen("a", "b", "c"))
    assert last.thought_at_tokens == 21_000
    assert cause("a", "b", "c", "d", "e", last=last, cached_tokens=20_990) is Cause.TEMPLATE
    assert cause("a", "b", "c", "d", "e", last=last, cached_tokens=10_000) is Cause.ENGINE


def test_of_two_reasons_the_dearer_is_named() -> None:
    changed_late = ("a", "b", "C", "d", "e")
    assert cause(*changed_late, gone=Gone.EVICTED, cached_tokens=0) is Cause.EVICTED
    assert cause(*changed_late, gone=Gone.EVICTED, cached_tokens=21_500) is Cause.HISTORY


# --- numbers ------------------------------------------------------------------------------------------------------


def test_sizes_are_exact_where_an_earlier_turn_ended() -> None:
    """The characters of this chain say something else: its first message is a picture of 9,000 tokens."""
    early = turn(None, seen("a", prompt_tokens=29_000))
    last = turn(early, seen("a", "b", "c", "d", "e", prompt_tokens=33_000))
    account = explain(last, seen("a", "B", "c", "d", "e", "f", "g", prompt_tokens=35_000, cached_tokens=29_000))
    assert account.cause is Cause.HISTORY
    assert misses.explain(last, replace(seen("a", "B"), prompt_tokens=40_000, cached_tokens=0)).cause is Cause.ENGINE


def test_a_long_history_is_folded_and_still_compared() -> None:
    names = [f"m{number}" for number in range(MOST_MESSAGES + 51)]
    last = turn(None, seen(*names))
    assert (len(last.chain.messages), last.folded) == (MOST_MESSAGES, 52)
    assert cause(*names, "d", "e", last=last) is Cause.NONE
    changed = [*names[:1951], "other", *names[1952:]]
    account = explain(last, seen(*changed, "d", "e", cached_tokens=1_971_000))
    assert (account.cause, account.where) == (Cause.HISTORY, "messages[1951]")
    early = explain(last, seen("other", *names[1:], "d", "e", cached_tokens=20_000))
    assert (early.cause, early.where) == (Cause.HISTORY, "messages[0]")


@pytest.mark.parametrize(
    ("prompt", "cached", "words"),
    [(2, 1, "1 of 1 token was reused."), (3, 2, "2 of 2 tokens were reused."), (3, 1, "1 of 2 tokens was reused.")],
)
def test_one_token_is_no_tokens(prompt: int, cached: int, words: str) -> None:
    this = seen("a", "b", "c", prompt_tokens=prompt, cached_tokens=cached)
    assert sentences.sentence(explain(LAST, this), this, LAST).endswith(words)


def test_what_is_kept_of_a_conversation_is_bounded() -> None:
    last = None
    for count in range(1, 3 * MOST_MARKS, 2):
        last = turn(last, seen(*(f"m{number}" for number in range(count))))
    assert last is not None
    assert len(last.marks) == MOST_MARKS


NAMES = st.lists(st.sampled_from("abcd"), min_size=1, max_size=6)
STARTS = st.builds(
    Started,
    worker=st.sampled_from(["w1", "w2"]),
    slot=st.just(0),
    attempt=st.just(1),
    queue_ms=st.just(0),
    prompt_tokens=st.just(0),
    cached_tokens=st.just(0),
    source=st.sampled_from(Source),
    gone=st.sampled_from(Gone),
    restored_tokens=st.integers(0, 99),
    engine_run=st.sampled_from(["r1", "r2"]),
)
TURNS = st.builds(
    lambda names, system, tools, **fields: seen(*names, system=system, tools=tools, **fields),
    names=NAMES,
    system=st.sampled_from("st"),
    tools=st.sampled_from("tu"),
    kind=st.sampled_from(Kind),
    summarised=st.booleans(),
    model=st.sampled_from("mn"),
    asked_model=st.sampled_from(["m", "{where}"]),
    started=STARTS,
    prompt_tokens=st.integers(0, 99_999),
    cached_tokens=st.integers(0, 99_999),
    output_tokens=st.integers(0, 9_999),
    prefill_ms=st.integers(0, 9_999),
    thought=st.booleans(),
    store_off=st.sampled_from(["", "a sliding window"]),
)


@given(st.lists(TURNS, min_size=1, max_size=5))
def test_every_turn_has_one_cause_a_sentence_and_a_loss_within_bounds(turns: list[Seen]) -> None:
    last = None
    for this in turns:
        account = explain(last, this)
        assert 0 <= account.lost_tokens <= account.expected_tokens <= max(0, this.prompt_tokens - 1)
        assert 0 <= account.lost_ms <= this.prefill_ms
        words = sentences.sentence(account, this, last)
        assert words.endswith(".")
        assert "\n" not in words
        assert sentences.to_do(account).endswith(".")
        last = turn(last, this)


@given(st.integers(0, 12), st.integers(1, 10))
def test_folding_keeps_the_sizes_of_what_still_stands_alone(count: int, length: int) -> None:
    whole = chain(*(f"m{number}" for number in range(length)))
    folded = fold(whole, count)
    assert folded.messages[1:] == whole.messages[max(1, count) :]
    assert set(folded.characters) <= set(whole.characters)
