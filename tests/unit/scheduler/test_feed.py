"""What one reader takes of a stream: all of it in order, or nothing beyond a piece that is missing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.contract import Delta, TextDelta, encode_deltas
from scheduler.follow import Feed

pytestmark = pytest.mark.unit

# How many entries each attempt wrote, and whether it began at 0, as an end that is written for a dead worker does.
ATTEMPTS = st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=4)


def ids(attempts: list[tuple[int, bool]]) -> list[str]:
    return [
        f"{attempt}-{number + (0 if zero else 1)}"
        for attempt, (count, zero) in enumerate(attempts, 1)
        for number in range(count)
    ]


async def read(feed: Feed, entries: list[str]) -> list[Delta]:
    for entry in entries:
        feed.put(entry, encode_deltas([TextDelta(entry)]))
    return await feed.deltas(0)


@given(ATTEMPTS)
async def test_a_stream_without_a_gap_is_given_out_whole(attempts: list[tuple[int, bool]]) -> None:
    feed, entries = Feed(), ids(attempts)
    assert await read(feed, entries) == [TextDelta(entry) for entry in entries]
    assert not feed.torn


@given(ATTEMPTS, st.data())
async def test_nothing_is_given_out_beyond_a_missing_piece(
    attempts: list[tuple[int, bool]], data: st.DataObject
) -> None:
    entries = ids(attempts)
    lost = data.draw(st.sampled_from(entries))
    place = entries.index(lost)
    rest = entries[:place] + entries[place + 1 :]
    feed = Feed()
    told = await read(feed, rest)
    inside = place + 1 < len(entries) and entries[place + 1].partition("-")[0] == lost.partition("-")[0]
    if inside and not lost.endswith("-0"):  # an attempt may begin at 1
        assert told == [TextDelta(entry) for entry in entries[:place]]
        assert feed.torn


async def test_what_a_lost_attempt_still_writes_is_not_taken() -> None:
    feed = Feed()
    await read(feed, ["1-1", "1-2", "1-4"])
    assert feed.torn
    assert feed.go_on_from(10) == [TextDelta("1-1"), TextDelta("1-2")]
    assert await read(feed, ["1-3", "2-1", "11-1", "11-2"]) == [TextDelta("11-1"), TextDelta("11-2")]
    assert feed.last_id == "11-2"
