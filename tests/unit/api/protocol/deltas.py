"""Deltas for tests: one of each kind, and any sequence of them.

Owns: the strategies that `test_events` and `test_whole` share.
Never: a rule about what comes of them.
"""

from hypothesis import strategies as st

from scheduler.contract import Delta, Finished, Started, StopReason, TextDelta, ThinkingDelta, ToolCall

STARTED = Started(worker="w1", slot=0, attempt=1, queue_ms=3, prompt_tokens=100, cached_tokens=60)


def finished(reason: StopReason = StopReason.END_TURN, sequence: str | None = None) -> Finished:
    return Finished(
        stop_reason=reason,
        stop_sequence=sequence,
        prompt_tokens=100,
        cached_tokens=60,
        output_tokens=7,
        prefill_ms=1,
        decode_ms=2,
        model_hash="h",
        engine_bytes=0,
    )


wild_texts = st.sampled_from(
    ["", " ", "\n", "a", "b c", "\u00e9", "\ud83d", "\ude00", "\N{GRINNING FACE}", "e\u0301"]
) | st.text(st.characters(codec=None, exclude_categories=()))
arguments = st.sampled_from(
    ["{}", '{"a":1}', '{ "z": "\\ud83d", "a": {"b": []} }', '{"a":"\ud83d"}', '{"a":"\\u0000"}']
)
calls = st.builds(ToolCall, st.uuids().map(str), st.sampled_from(["Bash", "Read"]), arguments)
middles = st.builds(TextDelta, wild_texts) | st.builds(ThinkingDelta, wild_texts) | calls | st.just(STARTED)
ends = st.builds(finished, st.sampled_from(StopReason), st.sampled_from([None, "STOP"]))


@st.composite
def answers(draw: st.DrawFn) -> list[Delta]:
    """What a worker may send for an answer that ends well, begun or not, with restarts in the middle."""
    return [*draw(st.lists(middles, max_size=12)), draw(ends)]
