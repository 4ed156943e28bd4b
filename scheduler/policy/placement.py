"""Where a job goes: to the worker that answers it soonest, its home before all others.

Owns: what a worker costs a job, in ms until its first token; the order of candidates; the choice among them.
Never: counts what is happening now: the loads are given. `lua/admit.lua` chooses in the same way with fresh ones.

Cost = expected wait + prefill of what is not cached there + what would be pushed out of the slots there. A home is left
only for a worker that is cheaper by a margin. A job without one goes to the first worker of its ring that costs about
as little as any, with bounded loads (Mirrokni, Thorup and Zadimoghaddam, 2016): one that holds more than `bound` times
its share of the conversations is passed over as long as that costs no more than the margin.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from scheduler.policy.fleet import Fleet, Site
from scheduler.policy.lengths import UNKNOWN, Length
from scheduler.policy.load import Load, expected_wait_ms

NO_LIMIT = -1
MOST_CANDIDATES = 8  # each costs the store a look at its line
NEAR_MS = 100.0  # nobody notices such a difference: among workers so close the ring decides
JUST_USED_MS = 2500  # a lease may be older than the answer that filled the slot


@dataclass(frozen=True, slots=True)
class Home:
    """The worker that a conversation lives on, and what its last answer left there; `used_ms` on the broker's clock."""

    worker: str
    tokens: int = 0
    used_ms: int = 0


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a job before it is placed. `agent` is its name among those of all keys (`claiming.agent_name`).

    `prompt_tokens` is an estimate, `length` how many tokens its answer is likely to have. `remembered`: it was so
    lately; the admission looks whether the home is still the same.
    """

    conversation: str
    agent: str
    level: int
    prompt_tokens: int
    length: Length = UNKNOWN
    home: Home | None = None
    remembered: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker that may take the job.

    `limit` is the number of conversations from which on it holds more than its share (NO_LIMIT: never). `prefill_ms` is
    what is not cached there, `displaced_ms` what a conversation without a slot would push out; `token_ms` the prefill
    of one token. `new_tokens` and `expected_ms` (service) are what the record says when it is taken.
    """

    worker: str
    slots: int
    limit: int = NO_LIMIT
    is_home: bool = False
    prefill_ms: float = 0.0
    displaced_ms: float = 0.0
    token_ms: float = 1.0
    new_tokens: int = 0
    expected_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Choice:
    """The candidate chosen, by its index, and what each would cost, in ms."""

    index: int
    costs: tuple[float, ...]


def candidates(fleet: Fleet, known: Known, bound: float) -> tuple[Candidate, ...]:
    """The workers to choose from, the home first if it is able; empty when none is.

    `bound` >= 1 is the factor on a fair share of the conversations.
    """
    fleet = fleet.fitting_prompt(known.prompt_tokens)
    names = fleet.ring.preference(known.conversation, MOST_CANDIDATES)
    home = known.home.worker if known.home and known.home.worker in fleet.sites else None
    if home is not None:
        names = [home, *(name for name in names if name != home)][:MOST_CANDIDATES]
    share = bound * (fleet.homes + 1) / fleet.weight if names else 0.0
    return tuple(_candidate(fleet, fleet.sites[name], known, share, name == home) for name in names)


def only(fleet: Fleet, known: Known, worker: str) -> tuple[Candidate, ...]:
    """That worker and no other; empty when it is not able."""
    return (candidate_at(fleet, worker, known),) if worker in fleet.sites else ()


def candidate_at(fleet: Fleet, worker: str, known: Known) -> Candidate:
    """What the job finds at one worker of the fleet, however many conversations are there."""
    is_home = known.home is not None and known.home.worker == worker
    return _candidate(fleet, fleet.sites[worker], known, math.inf, is_home)


def choose(
    found: Sequence[Candidate], loads: Mapping[str, Load], known: Known, margin_ms: float, most_queued: int
) -> Choice | None:
    """The candidate that takes the job; None when the line of each holds `most_queued` jobs already.

    The home, unless another is cheaper by more than the margin. Else the first, within NEAR_MS of the cheapest, of
    those under their limit if one of them is cheap enough, or of all.
    """
    costs = tuple(cost_ms(candidate, loads[candidate.worker], known) for candidate in found)
    open_ = [index for index, c in enumerate(found) if loads[c.worker].queued < most_queued]
    if not open_:
        return None
    enough = min(costs[index] for index in open_) + margin_ms
    for index in open_:
        if found[index].is_home and costs[index] <= enough:
            return Choice(index, costs)
    under = [i for i in open_ if found[i].limit == NO_LIMIT or loads[found[i].worker].homes < found[i].limit]
    near = [index for index in under if costs[index] <= enough] or open_
    least = min(costs[index] for index in near)
    return Choice(next(index for index in near if costs[index] <= least + NEAR_MS), costs)


class Reason(StrEnum):
    """Why a request went to its worker."""

    HOME = "home"  # the conversation lives there
    FIRST = "first"  # the ring's choice for a conversation that lives nowhere
    SPREAD = "spread"  # the ring's choice had its share, or a later one answers sooner
    SOONER = "sooner"  # away from its home, where the first token would come later
    ONLY = "only"  # no other worker can serve it, or it was meant for this one


def why(found: Sequence[Candidate], worker: str) -> Reason:
    """Why `worker` of those found took the request."""
    if any(one.worker == worker and one.is_home for one in found):
        return Reason.HOME
    if len(found) == 1:
        return Reason.ONLY
    if found[0].is_home:
        return Reason.SOONER
    return Reason.FIRST if found[0].worker == worker else Reason.SPREAD


def cost_ms(candidate: Candidate, load: Load, known: Known) -> float:
    """Expected ms until the first token there, and what others lose by it."""
    displaced_ms = 0.0 if candidate.is_home or load.homes < candidate.slots else candidate.displaced_ms
    return expected_wait_ms(load, candidate.slots, known.level, known.agent) + candidate.prefill_ms + displaced_ms


def _candidate(fleet: Fleet, site: Site, known: Known, share: float, is_home: bool) -> Candidate:
    cached, restore_ms = _cached(fleet, site, known)
    new_tokens = max(1, known.prompt_tokens - cached)
    prefill_ms = new_tokens * site.token_ms + restore_ms
    return Candidate(
        worker=site.worker,
        slots=site.slots,
        limit=NO_LIMIT if is_home or share == math.inf else math.ceil(share * site.weight),
        is_home=is_home,
        prefill_ms=prefill_ms,
        displaced_ms=site.displaced_ms,
        token_ms=site.token_ms,
        new_tokens=new_tokens,
        expected_ms=prefill_ms + known.length.mean() * site.output_token_ms,
    )


def _cached(fleet: Fleet, site: Site, known: Known) -> tuple[int, float]:
    """Tokens of the prompt that need no prefill there, and the ms in which they are restored."""
    home = known.home
    if home is None:
        return 0, 0.0
    held = fleet.held_at(home.worker, known.conversation)
    if site.worker == home.worker and (held or fleet.now_ms - home.used_ms < JUST_USED_MS):
        return home.tokens, 0.0
    saved = held.saved_tokens if held else home.tokens
    shared = site.worker == home.worker or fleet.share_a_store(site.worker, home.worker)
    if not shared or site.restore_token_ms is None or site.restore_token_ms >= site.token_ms:
        return 0, 0.0
    return saved, saved * site.restore_token_ms
