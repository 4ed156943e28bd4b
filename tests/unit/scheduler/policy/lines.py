"""Lines for the tests of claiming, made by hand or by Hypothesis.

Owns: how a line is built. Never: a rule of it.
"""

from hypothesis import strategies as st

from scheduler.contract import Kind
from scheduler.policy.claiming import Cached, Line, Occupied, Returning, Rules, Service, Waiting, agent_name

NOW_MS = 1_800_000_000_000
RULES = Rules()
AGEING_MS = int(RULES.ageing_ms)
KEYS, AGENTS = "kl", "abc"
WEIGHTS = {"a": 1.0, "b": 2.0, "c": 0.5}

whos = st.tuples(st.integers(0, 9), st.sampled_from(KEYS), st.sampled_from(AGENTS))
# Round ones are many on purpose: rules differ where times and services are equal.
waits_ms = st.one_of(st.sampled_from([0, AGEING_MS - 1, AGEING_MS, 2 * AGEING_MS]), st.integers(0, 400_000))
services_ms = st.one_of(st.sampled_from([0, 1000]), st.integers(0, 100_000))
services = st.builds(lambda ms, ago: Service(ms, NOW_MS - ago), services_ms, waits_ms)


def waiting(
    number: int,
    level: int = 5,
    agent: str = "a",
    *,
    conversation: str = "",
    key: str = "k",
    kind: Kind = Kind.MAIN,
    waited_ms: int = 0,
    expected_ms: float = 1000.0,
    weight: float = 1.0,
) -> Waiting:
    """The job `job-<number>`, which arrived as the `number`-th."""
    return Waiting(
        f"job-{number}", level, key, agent, kind, number, NOW_MS - waited_ms, expected_ms, agent_weight=weight,
        conversation=conversation,
    )  # fmt: skip


def line(*jobs: Waiting, slots: int = 1) -> Line:
    return Line(NOW_MS, slots, jobs)


CONVERSATIONS = ("", "c1", "c2", "c3")
conversations = st.sampled_from(CONVERSATIONS)


def caches(slots: int) -> st.SearchStrategy[list[Cached]]:
    """What free slots hold: as many are free, or more, while the worker's own look lags behind the store's."""
    left_ms = st.one_of(st.just(0), st.integers(1, 6000))
    cached = st.builds(Cached, st.sampled_from(CONVERSATIONS[1:]), st.integers(0, 9), st.integers(0, 30_000), left_ms)
    return st.lists(cached, max_size=slots, unique_by=lambda one: one.conversation)


@st.composite
def lines(draw: st.DrawFn, most: int = 24) -> Line:
    """Any line at NOW_MS, whoever runs, is about to come back, or was served lately."""
    waits = sorted(draw(st.lists(waits_ms, max_size=most)), reverse=True)
    jobs = [_job(draw, number, waited_ms) for number, waited_ms in enumerate(waits)]
    slots = draw(st.integers(1, 6))
    running = [Occupied(*who, draw(conversations)) for who in draw(st.lists(whos, max_size=slots))]
    returning = [
        Returning(*who, NOW_MS + draw(st.integers(-2, 6000))) for who in draw(st.lists(whos, max_size=4, unique=True))
    ]
    agents = {agent_name(key, agent): draw(services) for key in KEYS for agent in AGENTS if draw(st.booleans())}
    return Line(
        NOW_MS, slots, jobs, running, returning,
        keys={key: draw(services) for key in KEYS if draw(st.booleans())}, agents=agents,
        urgent_until_ms=NOW_MS + 600_000 if draw(st.booleans()) else 0.0,
        cached=draw(caches(slots)),
    )  # fmt: skip


@st.composite
def crowded_lines(draw: st.DrawFn) -> Line:
    """One slot or two are free, and most of what waits may not have it."""
    slots, near = draw(st.integers(2, 6)), st.tuples(st.sampled_from([4, 5, 6]), st.just("k"), st.sampled_from("abcd"))
    count = slots - draw(st.sampled_from([1, 1, 2]))
    running = draw(st.lists(st.tuples(st.sampled_from([2, 5]), st.just("k"), st.sampled_from("ab")), max_size=count))
    return Line(
        NOW_MS, slots,
        [waiting(number, 5, agent) for number, agent in enumerate(draw(st.text("ab", min_size=1, max_size=3)))],
        [*(Occupied(*who) for who in running), *[Occupied(5, "k", "a")] * (count - len(running))],
        [Returning(*who, NOW_MS + draw(st.integers(1, 6000))) for who in draw(st.lists(near, max_size=4, unique=True))],
        urgent_until_ms=NOW_MS + 600_000 if draw(st.booleans()) else 0.0, cached=draw(caches(1)),
    )  # fmt: skip


@st.composite
def cached_lines(draw: st.DrawFn) -> Line:
    """The free slots hold living conversations, some of which wait themselves."""
    slots = draw(st.integers(1, 4))
    kept = draw(st.lists(st.builds(
        Cached, st.sampled_from(CONVERSATIONS[1:]), st.integers(4, 6), st.integers(0, 30_000), st.integers(0, 6000),
    ), min_size=1, max_size=slots, unique_by=lambda one: one.conversation))  # fmt: skip
    running = [Occupied(5, "k", "d")] * (slots - draw(st.integers(1, len(kept))))
    waits = sorted(draw(st.lists(st.integers(0, 50_000), max_size=6)), reverse=True)
    return Line(
        NOW_MS, slots, [_job(draw, number, waited_ms) for number, waited_ms in enumerate(waits)], running, cached=kept
    )


def _job(draw: st.DrawFn, number: int, waited_ms: int) -> Waiting:
    level, key, agent = draw(whos)
    kind, expected_ms = draw(st.sampled_from(Kind)), draw(services_ms)
    weights = (WEIGHTS[agent], 2.0 if key == "l" else 1.0)
    return Waiting(
        f"job-{number}", level, key, agent, kind, number, NOW_MS - waited_ms, float(expected_ms), *weights,
        conversation=draw(conversations), prefill_ms=float(draw(st.integers(0, 20_000))),
    )  # fmt: skip
