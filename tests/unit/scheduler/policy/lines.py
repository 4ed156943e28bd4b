"""Lines for the tests of claiming, made by hand or by Hypothesis.

Owns: how a line is built. Never: a rule of it.
"""

from hypothesis import strategies as st

from scheduler.contract import Kind
from scheduler.policy.claiming import Line, Occupied, Returning, Rules, Service, Waiting, agent_name, pair_name

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
    key: str = "k",
    kind: Kind = Kind.MAIN,
    waited_ms: int = 0,
    expected_ms: float = 1000.0,
    weight: float = 1.0,
) -> Waiting:
    """The job `job-<number>`, which arrived as the `number`-th."""
    return Waiting(
        f"job-{number}", level, key, agent, kind, number, NOW_MS - waited_ms, expected_ms, agent_weight=weight
    )


def line(*jobs: Waiting, slots: int = 1) -> Line:
    return Line(NOW_MS, slots, jobs)


@st.composite
def lines(draw: st.DrawFn, most: int = 24) -> Line:
    """Any line at NOW_MS, whoever runs, is about to come back, or was served lately."""
    waits = sorted(draw(st.lists(waits_ms, max_size=most)), reverse=True)
    jobs = [_job(draw, number, waited_ms) for number, waited_ms in enumerate(waits)]
    slots = draw(st.integers(1, 6))
    running = [Occupied(*who) for who in draw(st.lists(whos, max_size=slots))]
    returning = [
        Returning(*who, NOW_MS + draw(st.integers(-2, 6000))) for who in draw(st.lists(whos, max_size=4, unique=True))
    ]
    names = [pair_name(job.level, job.key, job.agent) for job in jobs]
    heads = {name: float(NOW_MS - draw(waits_ms)) for name in names if draw(st.booleans())}
    agents = {agent_name(key, agent): draw(services) for key in KEYS for agent in AGENTS if draw(st.booleans())}
    return Line(
        NOW_MS, slots, jobs, running, returning, heads,
        keys={key: draw(services) for key in KEYS if draw(st.booleans())}, agents=agents,
        urgent_until_ms=NOW_MS + 600_000 if draw(st.booleans()) else 0.0,
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
        urgent_until_ms=NOW_MS + 600_000 if draw(st.booleans()) else 0.0,
    )  # fmt: skip


def _job(draw: st.DrawFn, number: int, waited_ms: int) -> Waiting:
    level, key, agent = draw(whos)
    kind, expected_ms = draw(st.sampled_from(Kind)), draw(services_ms)
    weights = (WEIGHTS[agent], 2.0 if key == "l" else 1.0)
    return Waiting(f"job-{number}", level, key, agent, kind, number, NOW_MS - waited_ms, float(expected_ms), *weights)
