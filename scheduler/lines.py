"""Reads workers' lines and what they run, and remembers it for a moment.

Owns: one look at many lines in one round trip, how old a look may be, and what this process has added since.
Never: writes; says what a wait is worth (`forecast`). How jobs are placed is looked up by `standing`.

A look is shared: while hundreds of requests a second come, ten looks a second are taken.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import orjson
from redis.asyncio import Redis

from infra import keys
from infra.redis_client import broker_errors
from scheduler import scripts
from scheduler.contract import Identity, Kind, Rates, WorkerInfo
from scheduler.policy.claiming import Line, Occupied, Rules, Service, Waiting, agent_name
from scheduler.policy.lengths import UNKNOWN, Length
from scheduler.policy.outlook import Had, Outlook
from scheduler.policy.waiting import Demand, Times, remaining_ms

FRESH_S = 0.1
NONE_SEEN = (0, float("-inf"))  # promises, and when
SERVICE_FRESH_S = 1.0  # it fades slowly, and grows with claims only
MOST_LOOKED_AT = 256  # jobs of a line
MOST_LINES = 16  # in one step of the store, which serves nobody else meanwhile
KEPT_S = 60.0  # a look at a worker that nobody asks about any more, and that may be gone
MOST_REMEMBERED = 10_000  # services of agents
ANY = ""  # model
NOBODY = Identity(key_name="", agent="", session=None, conversation="", kind=Kind.WARM, identified=False)


@dataclass(slots=True)
class _Look:
    """One worker's line and when it was looked at.

    `services` of those that waited then: the next look need not reckon them again, and no other will ask for them.
    """

    outlook: Outlook
    at_s: float
    services: Mapping[Demand, Times]


@dataclass(frozen=True, slots=True)
class _Reading:
    """A look under way, and at whose lines."""

    task: asyncio.Task[None]
    names: frozenset[str]


class Lines:
    """The lines of one API process's cluster. What reads raises BrokerDown when Redis does not answer.

    `moved` counts the queued jobs that the cluster has moved to be answered sooner.
    """

    def __init__(self, redis: Redis, rules: Rules) -> None:
        self._script = redis.register_script(scripts.text("lines"))
        self.rules = rules
        self._looks: dict[str, _Look] = {}
        self._promised: dict[str, tuple[int, float]] = {}
        self._had: dict[str, tuple[Service, float]] = {}
        self._reading: dict[str, _Reading] = {}
        self._wanted: dict[str, dict[str, WorkerInfo]] = {}
        self.moved = 0

    async def read(self, workers: Sequence[WorkerInfo], model: str, who: Identity = NOBODY) -> None:
        """Make sure that these lines, the promises of `model` and the service `who` had are known as of just now."""
        for _ in range(2):  # the look that was under way may have been at other workers
            # A look at all lines, for who watches them, knows nothing of the promises.
            seen_s = [self._promised_age_s(model), *(self._age_s(worker.name) for worker in workers)]
            if max(seen_s) > FRESH_S:
                await self._shared(workers, model, who)
        if who is not NOBODY and any(self._service_age_s(whom) > SERVICE_FRESH_S for whom in _names(who)):
            await self._fetch((), model, who)

    async def look(self, workers: Sequence[WorkerInfo]) -> None:
        """See these lines as of now."""
        await self._shared(workers, ANY, NOBODY)

    def of(self, worker: str) -> Outlook | None:
        """What was seen of a worker lately; None: nothing."""
        look = self._looks.get(worker)
        return look.outlook if look else None

    def promised(self, model: str) -> int:
        """How many refused callers hold a promise, as far as seen."""
        return self._promised.get(model, NONE_SEEN)[0]

    def promise(self, model: str) -> None:
        """This process has promised a place: whoever comes before the next look must not pass."""
        count, seen_s = self._promised.get(model, NONE_SEEN)
        self._promised[model] = (count + 1, seen_s)

    def had(self, who: Identity) -> Had:
        """The service that the key and the agent had, as far as seen."""
        key, agent = map(self._service_of, _names(who))
        return key, agent

    def add(self, worker: WorkerInfo, job: Waiting, length: Length, new_tokens: int) -> None:
        """This process has put `job` into that line since it was looked at."""
        look = self._looks.get(worker.name)
        if look is not None and all(other.id != job.id for other in look.outlook.line.waiting):
            demand = _demand(job.id, worker.rates, new_tokens, length)
            look.outlook = look.outlook.with_one_more(job, remaining_ms(demand))

    def remove(self, worker: str, job_id: str) -> None:
        """The job has ended, or was given up, since that line was looked at."""
        look = self._looks.get(worker)
        if look is not None:
            look.outlook = look.outlook.without(job_id)

    async def _shared(self, workers: Sequence[WorkerInfo], model: str, who: Identity) -> None:
        """One look at a time for each model. Who comes meanwhile waits for it; the next one is at all lines that were
        asked for and were not in it."""
        wanted = self._wanted.setdefault(model, {})
        reading = self._reading.get(model)
        if reading is None:
            wanted.update((worker.name, worker) for worker in workers)
            task = asyncio.create_task(self._fetch(list(wanted.values()), model, who))
            reading = self._reading[model] = _Reading(task, frozenset(wanted))
            wanted.clear()
            task.add_done_callback(lambda done: self._end(model, done))
        else:
            wanted.update((worker.name, worker) for worker in workers if worker.name not in reading.names)
        await asyncio.shield(reading.task)

    def _end(self, model: str, task: asyncio.Task[None]) -> None:
        del self._reading[model]
        if not task.cancelled():
            task.exception()  # looked at, should all who wait for it have left

    async def _fetch(self, workers: Sequence[WorkerInfo], model: str, who: Identity) -> None:
        for start in range(0, max(1, len(workers)), MOST_LINES):
            await self._fetch_some(workers[start : start + MOST_LINES], model, who)
        oldest_s = monotonic() - KEPT_S
        for name in [name for name, look in self._looks.items() if look.at_s < oldest_s]:
            del self._looks[name]

    async def _fetch_some(self, workers: Sequence[WorkerInfo], model: str, who: Identity) -> None:
        names = [name(worker.name) for worker in workers for name in (keys.line, keys.running, keys.urgent)]
        names += [keys.promises("places", model), keys.COUNTS]
        arguments: list[str | int] = [keys.job(""), keys.attained(""), MOST_LOOKED_AT, *_names(who)]
        with broker_errors():
            found: Any = orjson.loads(await self._script(names, arguments))
        at_s = monotonic()
        self._promised[model], self.moved = (found["promised"], at_s), found["moved"]
        self._remember(found["service"] or {}, at_s)
        for worker, row in zip(workers, found["workers"] or (), strict=True):
            demands = _demands(worker, row)
            services = self._services(worker.name, demands.values())
            waiting = {job_id: services[demand] for job_id, demand in demands.items()}
            outlook = self._outlook(worker, row, found["now"], waiting)
            self._looks[worker.name] = _Look(outlook, at_s, services)

    def _services(self, worker: str, demands: Iterable[Demand]) -> dict[Demand, Times]:
        look = self._looks.get(worker)
        known = look.services if look else {}
        return {demand: known.get(demand) or remaining_ms(demand) for demand in demands}

    def _remember(self, service: Mapping[str, Sequence[Any]], at_s: float) -> None:
        if len(self._had) > MOST_REMEMBERED:
            self._had.clear()
        for whom, (ms, since_ms) in service.items():
            self._had[whom] = (Service(float(ms or 0), float(since_ms or 0)), at_s)

    def _outlook(
        self, worker: WorkerInfo, row: Mapping[str, Any], now_ms: float, services: Mapping[str, Times]
    ) -> Outlook:
        waiting = [_waiting(fields, now_ms) for fields in row["waiting"] or ()]
        running = [_running(fields, worker.rates, now_ms) for fields in row["running"] or ()]
        occupied = [Occupied(int(f[1] or 0), f[2] or "", f[3] or "") for f in row["running"] or ()]
        here = {(job.key, job.agent) for job in waiting} | {(job.key, job.agent) for job in occupied}
        line = Line(
            now_ms=now_ms,
            slots=len(worker.slots) or 1,
            waiting=waiting,
            running=occupied,
            keys={key: self._service_of(f"key:{key}") for key, _ in here},
            agents={agent_name(*one): self._service_of(f"agent:{agent_name(*one)}") for one in here},
            urgent_until_ms=now_ms + max(0, row["urgent_ms"]),
        )
        queued = row["queued"] if row["queued"] > MOST_LOOKED_AT else 0
        return Outlook(line, self.rules, running, services, queued)

    def _service_of(self, whom: str) -> Service:
        return self._had[whom][0] if whom in self._had else Service()

    def _age_s(self, worker: str) -> float:
        look = self._looks.get(worker)
        return monotonic() - look.at_s if look else float("inf")

    def _promised_age_s(self, model: str) -> float:
        return monotonic() - self._promised.get(model, NONE_SEEN)[1]

    def _service_age_s(self, whom: str) -> float:
        return monotonic() - self._had[whom][1] if whom in self._had else float("inf")


def _names(who: Identity) -> list[str]:
    if who is NOBODY:
        return []
    return [f"key:{who.key_name}", f"agent:{agent_name(who.key_name, who.agent)}"]


def _waiting(fields: Sequence[Any], now_ms: float) -> Waiting:
    job_id, level, key, agent, kind, arrival, arrival_ms, expected_ms, agent_weight, key_weight = fields[:10]
    return Waiting(
        id=job_id,
        level=int(level),
        key=key or "",
        agent=agent,
        kind=Kind(kind),
        arrival=int(arrival or 0),
        arrival_ms=float(arrival_ms or now_ms),
        expected_ms=float(expected_ms or 0),
        agent_weight=float(agent_weight or 1),
        key_weight=float(key_weight or 1),
    )


def _running(fields: Sequence[Any], rates: Rates, now_ms: float) -> Times:
    elapsed_ms = max(0.0, now_ms - float(fields[4] or now_ms))
    return remaining_ms(_demand(fields[0], rates, fields[5], _length(fields[6:]), elapsed_ms))


def _demands(worker: WorkerInfo, row: Mapping[str, Any]) -> dict[str, Demand]:
    return {f[0]: _demand(f[0], worker.rates, f[10], _length(f[11:])) for f in row["waiting"] or ()}


def _demand(job_id: str, rates: Rates, new_tokens: Any, length: Length, elapsed_ms: float = 0.0) -> Demand:
    prefill_ms = 1000 * float(new_tokens or 0) / rates.prefill_tokens_per_s
    return Demand(job_id, prefill_ms, 1000 / rates.decode_tokens_per_s, length, elapsed_ms)


def _length(fields: Sequence[Any]) -> Length:
    mu, sigma = fields
    return Length(float(mu), float(sigma)) if mu and sigma else UNKNOWN
