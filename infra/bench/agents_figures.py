"""What a replay cost: tokens prefilled, the least that would have done, and times to first token.

Owns: the two minima, reuse, and medians over repeats.
Never: asks, prints.

Tokens are the engine's own counts, as it or the gateway reports them for each request. For turn t of a conversation let
P(t) be the tokens of its prompt, C(t) those found in a cache, O(t) those generated.
- prefilled: the sum of P(t) - C(t) over all answered requests, side calls included.
- minimum of a perfect cache per conversation: after turn t it holds P(t) + O(t) tokens, so turn t+1 needs only
  P(t+1) - P(t) - O(t), but never less than 1 (an engine always processes one token); the first turn needs all of P(1).
  Summed over its turns, each token of a conversation is prefilled once, and none that was generated. No allowance is
  made for the last generated token, which an engine has not yet put in its cache: it costs one token a turn.
- the same over later turns alone, where it shows what routing loses: first turns, with the base, outweigh all else.
- minimum with a shared base: as above, but system and tools of a kind of conversation are prefilled once per engine
  that answered, not once per conversation. A base that one engine saved and another restored costs even less.
- reuse: C / P over later turns. Even a perfect cache stays below 100 %, as a turn brings new words; so `of_reusable`
  is C(t+1) / (P(t) + O(t)), bounded by P(t+1) - 1: what was found of what could have been.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from infra.bench.agents_session import Kind
from infra.bench.asking import Outcome
from infra.bench.report import Figures, percentile

SHARING = (Kind.MAIN, Kind.SUBAGENT)  # side calls have hardly a base


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: its conversation's name, its number there from 0, what came back, and the engine that answered."""

    conversation: str
    kind: Kind
    number: int
    outcome: Outcome
    engine: str = ""


def minimum(turns: Sequence[Turn]) -> int:
    """Tokens that a perfect cache per conversation prefills for these answered turns."""
    return later_minimum(turns) + sum(talk[0].outcome.prompt_tokens for talk in _talks(turns))


def later_minimum(turns: Sequence[Turn]) -> int:
    """The share of the minimum that falls to all turns but each conversation's first."""
    return sum(_new(*pair) for talk in _talks(turns) for pair in pairwise(talk))


def shared_minimum(turns: Sequence[Turn], bases: Mapping[Kind, int], engines: int) -> int:
    """The minimum when each base (tokens, by kind) is prefilled once per engine."""
    saved = 0
    for kind in SHARING:
        talks = len(_talks([turn for turn in turns if turn.kind is kind]))
        saved += bases.get(kind, 0) * max(0, talks - engines)
    return minimum(turns) - saved


def figures(turns: Sequence[Turn], wall_s: float, bases: Mapping[Kind, int]) -> Figures:
    """All figures of one arm. Failed requests count in `failed` only. Engines are those that answered."""
    fine = [turn for turn in turns if turn.outcome.fine]
    prefilled, least = sum(map(_prefilled, fine)), minimum(fine)
    later, later_least = sum(_prefilled(turn) for turn in fine if turn.number), later_minimum(fine)
    shared = shared_minimum(fine, bases, len({turn.engine for turn in fine}))
    found: Figures = {
        **_kind_figures("", [turn for turn in fine if turn.kind is Kind.MAIN]),
        "prefilled": prefilled,
        "minimum": least,
        "ratio": round(prefilled / max(1, least), 3),
        "later_prefilled": later,
        "later_minimum": later_least,
        "later_ratio": round(later / max(1, later_least), 3),
        "shared_minimum": shared,
        "shared_ratio": round(prefilled / max(1, shared), 3),
        "moves": _moves(fine),
        "first_ms_of_turns": _of_turns([turn for turn in fine if turn.kind is Kind.MAIN]),
        "wall_s": round(wall_s, 1),
        "requests": len(turns),
        "failed": len(turns) - len(fine),
    }
    for kind in (Kind.SUBAGENT, Kind.SIDE):
        found |= _kind_figures(f"{kind}_", [turn for turn in fine if turn.kind is kind])
    if len(fine) < len(turns):
        found["errors"] = dict(Counter(turn.outcome.error for turn in turns if not turn.outcome.fine).most_common(5))
    return found


def medians(runs: Sequence[Figures]) -> Figures:
    """name -> [median, least, most] over the runs that have it; words and errors are left out."""
    names = dict.fromkeys(name for run in runs for name, value in run.items() if isinstance(value, int | float))
    values = {name: [run[name] for run in runs if name in run] for name in names}
    return {name: [median(found), min(found), max(found)] for name, found in values.items()}


def _kind_figures(prefix: str, turns: Sequence[Turn]) -> Figures:
    """Times and reuse of the conversations of one kind; nothing when there are none."""
    first = [turn.outcome.first_s for turn in turns if turn.number == 0]
    later = [turn.outcome.first_s for turn in turns if turn.number > 0]
    found: dict[str, Any] = {}
    if first:
        found["first_ttft_p50_ms"] = _ms(percentile(first, 0.5))
        found["first_prefilled"] = sum(_prefilled(turn) for turn in turns if turn.number == 0)
    if later:
        found |= {"later_ttft_p50_ms": _ms(percentile(later, 0.5)), "later_ttft_p90_ms": _ms(percentile(later, 0.9))}
        found |= {"reuse_pct": _reuse_pct(turns), "of_reusable_pct": _of_reusable_pct(turns)}
    return {prefix + name: value for name, value in found.items()}


def _of_turns(turns: Sequence[Turn]) -> list[list[float]]:
    """Times to first token in ms: those of all conversations' first turns, of their second ones, and so on."""
    count = max((turn.number for turn in turns), default=-1) + 1
    return [[_ms(turn.outcome.first_s) for turn in turns if turn.number == number] for number in range(count)]


def _reuse_pct(turns: Sequence[Turn]) -> float:
    later = [turn.outcome for turn in turns if turn.number > 0]
    return _percent(sum(o.cached_tokens for o in later), sum(o.prompt_tokens for o in later))


def _of_reusable_pct(turns: Sequence[Turn]) -> float:
    pairs = [(a.outcome, b.outcome) for talk in _talks(turns) for a, b in pairwise(talk)]
    reusable = sum(min(a.prompt_tokens + a.output_tokens, b.prompt_tokens - 1) for a, b in pairs)
    return _percent(sum(b.cached_tokens for _, b in pairs), reusable)


def _moves(turns: Sequence[Turn]) -> int:
    """How often a conversation's next turn was answered by another engine."""
    return sum(a.engine != b.engine for talk in _talks(turns) for a, b in pairwise(talk))


def _talks(turns: Iterable[Turn]) -> list[list[Turn]]:
    talks: dict[str, list[Turn]] = defaultdict(list)
    for turn in turns:
        talks[turn.conversation].append(turn)
    return [sorted(talk, key=lambda turn: turn.number) for talk in talks.values()]


def _new(before: Turn, after: Turn) -> int:
    held = before.outcome.prompt_tokens + before.outcome.output_tokens
    return max(1, after.outcome.prompt_tokens - held)


def _prefilled(turn: Turn) -> int:
    return turn.outcome.prompt_tokens - turn.outcome.cached_tokens


def _percent(part: float, whole: float) -> float:
    return round(100 * part / max(1, whole), 2)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
