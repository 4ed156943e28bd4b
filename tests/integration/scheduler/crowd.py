"""Callers that come, are refused and come back as told, in virtual time over the real store and its scripts.

Owns: the clock that the scripts and the looks at lines read, arrivals, slots that serve for given times, and what
became of each caller.
Never: a rule of who is let in; judges a figure.
"""

import heapq
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

from infra import keys
from infra.errors import Refused
from infra.redis_client import async_client, sync_client
from scheduler import lines as lines_module
from scheduler import scripts
from scheduler.claims import Claims
from scheduler.contract import (
    ClusterView,
    Identity,
    JobSpec,
    Kind,
    Rates,
    SlotInfo,
    WorkerInfo,
    WorkerState,
    WorkerView,
)
from scheduler.forecast import Forecast
from scheduler.lines import Lines
from scheduler.policy.claiming import Rules
from scheduler.policy.lengths import Length
from scheduler.policy.placement import Candidate
from scheduler.promises import Promises
from tests.doubles.broker import Broker
from tests.integration.scheduler.store import API, packed

WORKER, INCARNATION = "w1", "w1-now"
BEGAN_S = 1_700_000_000
CLOCK = "test:clock"
TIME = "redis.call('TIME')"
VIRTUAL_TIME = f"{{redis.call('HGET', '{CLOCK}', 's'), redis.call('HGET', '{CLOCK}', 'us')}}"
PROMPT_TOKENS = 300
RATES = Rates(prefill_tokens_per_s=1000, decode_tokens_per_s=50)
QUEUE_LIMIT = 64

Happen = Callable[[], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class Caller:
    """One who asks at `at_s`, and once again when it was told to; `service_s` is what its answer takes a slot.

    `told_s` stays 0 when it was let in at once, `waited_s` None when it was never started."""

    number: int
    at_s: float
    agent: str
    wait_limit_s: float
    service_s: float = 1.0
    level: int = 5
    told_s: int = 0
    told_again_s: int = 0
    tries: int = 0
    waited_s: float | None = None

    @property
    def kept(self) -> bool:
        """Refused, and started after it came back."""
        return self.told_s > 0 and self.waited_s is not None


@dataclass(slots=True)
class _Timeline:
    now_s: float = 0.0
    events: list[tuple[float, int, Happen]] = field(default_factory=list)
    numbers: "count[int]" = field(default_factory=count)

    def at(self, when_s: float, happen: Happen) -> None:
        heapq.heappush(self.events, (max(when_s, self.now_s), next(self.numbers), happen))


class Crowd:
    """One worker with `slots`, one API process, and callers."""

    def __init__(self, broker: Broker, patch: pytest.MonkeyPatch, slots: int = 4) -> None:
        self._raw: Any = broker.client
        self._redis, self._sync = async_client(broker.url), sync_client(broker.url)
        self._slots = slots
        self._time = _Timeline()
        rules = Rules()
        self._lines, self._promises = Lines(self._redis, rules), Promises(self._redis, QUEUE_LIMIT)
        self._claims = Claims(self._sync, self._sync, WORKER, INCARNATION, rules)
        self.forecast = Forecast(self._lines, self._promises)
        self._by_job: dict[str, Caller] = {}
        for owner, attribute, name in (
            (self._lines, "_script", "lines"),
            (self._promises, "_promise", "promise"),
            (self._claims, "_claim", "claim"),
            (self._claims, "_settle", "settle"),
        ):
            client: Any = self._sync if owner is self._claims else self._redis
            text = scripts.text(name)
            assert TIME in text
            setattr(owner, attribute, client.register_script(text.replace(TIME, VIRTUAL_TIME)))
        patch.setattr(lines_module, "monotonic", lambda: self._time.now_s)

    async def close(self) -> None:
        await self._redis.aclose()
        self._sync.close()

    async def serve(self, callers: Iterable[Caller]) -> list[Caller]:
        """What became of each, once nobody waits any more."""
        made = list(callers)
        self._raw.xadd(keys.wake(API), {"job": ""})
        for caller in made:
            self._time.at(caller.at_s, lambda caller=caller: self._ask(caller))  # type: ignore[misc]
        while self._time.events:
            self._time.now_s, _, happen = heapq.heappop(self._time.events)
            self._set_clock()
            await happen()
        return made

    @property
    def _now_ms(self) -> int:
        return BEGAN_S * 1000 + round(self._time.now_s * 1000)

    def _set_clock(self) -> None:
        seconds, ms = divmod(self._now_ms, 1000)
        self._raw.hset(CLOCK, mapping={"s": seconds, "us": ms * 1000})

    def _view(self) -> ClusterView:
        slots = tuple(SlotInfo(slot=number) for number in range(self._slots))
        info = WorkerInfo(
            name=WORKER, incarnation=INCARNATION, state=WorkerState.READY, model="m", slots=slots, rates=RATES
        )
        queued = (self._raw.zcard(keys.line(WORKER)), *(0,) * 9)
        running = self._raw.hlen(keys.running(WORKER))
        return ClusterView(now_ms=self._now_ms, workers=(WorkerView(info=info, queued=queued, running=running),))

    async def _ask(self, caller: Caller) -> None:
        caller.tries += 1
        spec = _spec(caller)
        candidate = Candidate(WORKER, self._slots, new_tokens=PROMPT_TOKENS, expected_ms=1000)
        try:
            arrival = await self.forecast.let_in(spec, self._view(), [candidate], 1.0)
        except Refused as refusal:
            told_s = refusal.retry_after_s or 0
            if caller.tries == 1:
                caller.told_s = told_s
                self._time.at(self._time.now_s + told_s + 0.02, lambda: self._ask(caller))
            else:
                caller.told_again_s = told_s
            return
        await self.forecast.took(arrival, Length(3.555, 0.3), WORKER, waits=True)
        self._join(spec)
        self._by_job[spec.id] = caller
        self._time.at(self._time.now_s + caller.wait_limit_s + 0.001, lambda: self._give_up(spec))
        await self._claim()

    def _join(self, spec: JobSpec) -> None:
        arrival = self._raw.incr(keys.ARRIVALS)
        who = spec.identity
        fields = {
            "state": "queued", "attempt": 0, "worker": WORKER, "level": spec.level, "api": API, "key": who.key_name,
            "agent": who.agent, "kind": who.kind.value, "conversation": who.conversation, "arrival": arrival,
            "arrival_ms": self._now_ms, "deadline_ms": self._now_ms + spec.wait_limit_ms, "reserve": 0, "body": "",
            "expected_ms": 1000, "new_tokens": PROMPT_TOKENS, "length_mu": 3.555, "length_sigma": 0.3,
        }  # fmt: skip
        self._raw.hset(keys.job(spec.id), mapping=fields)
        self._raw.zadd(keys.line(WORKER), {spec.id: spec.level * keys.LEVEL_WEIGHT + arrival})

    async def _give_up(self, spec: JobSpec) -> None:
        if self._raw.zrem(keys.line(WORKER), spec.id):
            self._raw.delete(keys.job(spec.id))
            self.forecast.ended(spec.id)

    async def _claim(self) -> None:
        while self._raw.hlen(keys.running(WORKER)) < self._slots:
            job = self._claims.claim(self._slots)
            if job is None:
                return
            caller = self._by_job[job.id]
            caller.waited_s = job.queue_ms / 1000
            self._time.at(self._time.now_s + caller.service_s, lambda job=job: self._end(job))  # type: ignore[misc]

    async def _end(self, job: Any) -> None:
        caller = self._by_job[job.id]
        self._raw.hdel(keys.running(WORKER), job.id)
        self._raw.delete(keys.job(job.id))
        self._claims.settle(job, caller.service_s * 1000, 35, in_tool_call=False)
        self.forecast.ended(job.id)
        await self._claim()


def _spec(caller: Caller) -> JobSpec:
    who = Identity(
        key_name="k", agent=caller.agent, session=None, conversation=f"c{caller.number}", kind=Kind.MAIN,
        identified=caller.agent != "anonymous",
    )  # fmt: skip
    return JobSpec(
        id=f"caller{caller.number}-{caller.tries}", identity=who, level=caller.level,
        wait_limit_ms=round(caller.wait_limit_s * 1000), request=packed(f"caller{caller.number}"),
        prompt_tokens=PROMPT_TOKENS,
    )  # fmt: skip
