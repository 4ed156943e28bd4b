"""Shapes that a gateway tells become the lines of a trace.

Owns: what a request came after, how its prompt differs from the last one of its conversation, and the tokens of each
piece. Pure.
Never: asks.

The gateway knows a piece's characters and a whole prompt's tokens. A piece gets its tokens when it is first seen: what
the prompt has beyond its known pieces is shared out among the new ones by characters. So an equal piece always has
equal tokens, and a prompt's pieces add up to what the engine counted, but for the rounding of a piece.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from infra.bench.trace import Piece, Request

OUTCOMES = ("done",)  # one that was refused, failed or left has no prompt that was read and no end of its own


@dataclass(slots=True)
class Shaping:
    """`began_s` is the recording's beginning on the gateway's clock."""

    began_s: float
    left_out: int = 0
    count: int = 0
    _tokens: dict[str, int] = field(default_factory=dict)
    _prompts: dict[str, Sequence[str]] = field(default_factory=dict)
    _ends: dict[str, list[tuple[int, float]]] = field(default_factory=dict)  # by session: its requests and their ends

    def request(self, shape: Mapping[str, Any]) -> Request | None:
        """The next line; None for a request that is left out because nobody answered it."""
        if shape["outcome"] not in OUTCOMES or "prompt_tokens" not in shape:
            self.left_out += 1
            return None
        number, self.count = self.count, self.count + 1
        ended_s = shape["ended_s"] - self.began_s
        came_s = ended_s - shape["took_ms"] / 1000
        after, gap_s = self._after(shape["session"], came_s)
        self._ends.setdefault(shape["session"], []).append((number, ended_s))
        keeps, new = self._prompt(shape["conversation"], shape["pieces"], shape["prompt_tokens"])
        return Request(
            n=number,
            at_s=round(max(0.0, came_s), 3),
            after=after,
            gap_s=round(gap_s, 3),
            keeps=keeps,
            new=new,
            stop=shape.get("stop_reason", ""),
            first_ms=shape.get("first_ms", shape["took_ms"]),
            **{name: shape[name] for name in ("session", "agent", "conversation", "kind", "level", "tools")},
            **{
                name: shape[name] for name in ("prompt_tokens", "cached_tokens", "output_tokens", "queue_ms", "took_ms")
            },
        )

    def _after(self, session: str, came_s: float) -> tuple[int | None, float]:
        """The last request of the session that had ended when this one came, and how long ago."""
        ended = [(end_s, number) for number, end_s in self._ends.get(session, ()) if end_s <= came_s]
        if not ended:
            return None, 0.0
        end_s, number = max(ended)
        return number, came_s - end_s

    def _prompt(
        self, conversation: str, pieces: Sequence[tuple[str, int]], total: int
    ) -> tuple[int, tuple[Piece, ...]]:
        """How many first pieces are those of the conversation's last prompt, and the others."""
        names = [name for name, _ in pieces]
        held = self._prompts.get(conversation, ())
        keeps = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(held, names, strict=False)))
        self._prompts[conversation] = names
        self._learn(pieces, total)
        return keeps, tuple((name, self._tokens[name]) for name in names[keeps:])

    def _learn(self, pieces: Sequence[tuple[str, int]], total: int) -> None:
        new = {name: characters for name, characters in pieces if name not in self._tokens}
        left = max(0, total - sum(self._tokens.get(name, 0) for name, _ in pieces))
        characters = max(1, sum(new.values()))
        for name, size in new.items():
            share = round(left * size / characters)
            self._tokens[name] = max(1, share)
            left, characters = left - share, max(1, characters - size)
