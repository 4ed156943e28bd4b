"""What `lua/admit.lua` is given to place a job, and what it answers.

Owns: the keys and arguments of that step, the fields of a new record, and the log line of a conversation that leaves
its home.
Never: sends the step (`jobs`), chooses (the script does, as `policy.placement`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from infra import keys
from infra.config import Settings
from infra.errors import CorralError, NoWorker, QueueFull
from infra.redis_script import Argument
from scheduler.contract import JobSpec, Kind
from scheduler.policy.claiming import MOST_URGENT_LEVEL
from scheduler.policy.lengths import Samples
from scheduler.policy.load import LOOKED_AT
from scheduler.policy.placement import NEAR_MS, Candidate, Known
from scheduler.remembered import EVERYONE, known_of, whose
from scheduler.ticket import NO_TICKET, Ticket

log = structlog.get_logger(__name__)
ENDED_LIFETIME_MS = 60_000
API_LIFETIME_MS = 60_000  # renewed each second; as long as a broker may be frozen without harm
HOME_MOVED, OWN_AT, ALL_AT = -2, 5, 8  # of the script's answer
NO_HOME_MS = 0  # a warm-up is nobody's conversation
HOMES_COUNT_MS = 300_000  # a conversation unused for five minutes no longer counts as load
URGENT_MS = 600_000  # slots are kept for the urgent levels as long after the last such request


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the line: jobs it may hold, how long homes and waiting records live, and how much sooner an answer must
    be for a conversation to leave its home; and the share of a worker's slots that is kept for the urgent levels."""

    queue: int
    home_ms: int
    move_margin_ms: int = 1000
    urgent_share: float = 0.25


def limits_of(settings: Settings) -> Limits:
    """The bounds within which a job is placed."""
    return Limits(
        queue=settings.queue_limit,
        home_ms=int(settings.home_lifetime_s * 1000),
        move_margin_ms=int(settings.move_margin_s * 1000),
        urgent_share=settings.urgent_share,
    )


@dataclass(frozen=True, slots=True)
class Admission:
    """Where a job was placed, whether its prompt may use the window's reserve, and what it costs there
    (`policy.placement`, in ms; 0 when it had been placed before); whether no slot there is free for it."""

    worker: str
    may_use_reserve: bool
    cost_ms: int = 0
    waits: bool = False


class HomeMoved(CorralError):
    """The conversation does not live any more where this process remembers it; nothing was written."""


def unknown(spec: JobSpec) -> Known:
    """A job of which nothing is remembered."""
    return known_of(spec, Samples(), Samples(), None)


def step(
    spec: JobSpec,
    api: str,
    limits: Limits,
    known: Known,
    candidates: Sequence[Candidate],
    attempts_before: int = 0,
    ticket: Ticket = NO_TICKET,
) -> tuple[list[str], list[Argument]]:
    """Keys and arguments, as the script's head lists them."""
    who, home = spec.identity, known.home.worker if known.home else ""
    fields: list[Argument] = [
        "api", api, "conversation", who.conversation, "kind", who.kind.value, "model", spec.request.model,
        "agent_weight", spec.agent_weight, "key_weight", spec.key_weight, "prompt_tokens", spec.prompt_tokens,
        "length_mu", known.length.mu, "length_sigma", known.length.sigma, "body", spec.request.body,
        "attempt", attempts_before, "spared", attempts_before,
    ]  # fmt: skip
    if spec.traceparent:
        fields += ["trace", spec.traceparent]
    names = [
        keys.job(spec.id), keys.ARRIVALS, keys.wake(api), keys.home(who.conversation),
        keys.overflow(who.key_name, who.session or spec.id), keys.homes(home), keys.lengths(whose(spec)),
        keys.lengths(EVERYONE),
    ]  # fmt: skip
    home_ms = NO_HOME_MS if who.kind is Kind.WARM else limits.home_ms
    arguments: list[Argument] = [
        spec.id, spec.level, spec.wait_limit_ms, spec.wait_limit_ms + ENDED_LIFETIME_MS, limits.queue, home_ms,
        who.conversation, keys.LEVEL_WEIGHT, HOMES_COUNT_MS, len(fields) // 2, API_LIFETIME_MS, who.key_name, who.agent,
        limits.move_margin_ms, NEAR_MS, LOOKED_AT, keys.job(""), MOST_URGENT_LEVEL, URGENT_MS, home,
        limits.urgent_share, ticket.head, ticket.tail, _checked(known), *fields,
    ]  # fmt: skip
    for one in candidates:
        books = (keys.line, keys.running, keys.lease, keys.homes, keys.urgent, keys.holding, keys.control)
        names += [*(name_of(one.worker) for name_of in books), keys.level_list(one.worker, spec.level)]
        arguments += [
            one.worker, one.limit, one.slots, int(one.is_home), one.prefill_ms, one.displaced_ms, one.token_ms,
            one.new_tokens, one.expected_ms,
        ]  # fmt: skip
    return names, arguments


def _checked(known: Known) -> str:
    """The tokens that its home must still hold, '' when it was read just now."""
    return str(known.home.tokens) if known.remembered and known.home else ""


def outcome(answer: Sequence[bytes], candidates: Sequence[Candidate], known: Known, retry_after_s: int) -> Admission:
    """What the script answered, in its parts.

    Raises QueueFull when every line is full, NoWorker when no candidate is alive, HomeMoved when `known` was remembered
    and is not true any more.
    """
    index = int(answer[0])
    if index == HOME_MOVED:
        raise HomeMoved("the conversation's home is another one by now")
    if index < 0:
        raise NoWorker("no worker is alive; start one with `corral worker`", retry_after_s=retry_after_s)
    if index == 0:
        raise QueueFull("all workers are busy and their queues are full", retry_after_s=retry_after_s)
    worker = candidates[index - 1].worker
    if known.home is not None and worker != known.home.worker and answer[3]:
        log.info(
            "left_home", conversation=known.conversation, worker=known.home.worker, to=worker,
            home_cost_ms=int(answer[3]), cost_ms=int(answer[2]),
        )  # fmt: skip
    return Admission(worker, may_use_reserve=answer[1] == b"1", cost_ms=int(answer[2]), waits=answer[4] == b"1")


def samples(fields: Sequence[Any]) -> Samples:
    """Lengths as the store keeps them."""
    return Samples(*(float(value or 0) for value in fields))
