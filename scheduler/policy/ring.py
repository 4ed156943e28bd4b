"""Consistent hashing by highest random weight.

Owns: the order in which workers are preferred for a conversation. Adding or losing one of N workers changes the
first choice of about 1/N of the conversations and of no others.
Never: looks at load; `placement` does.

Rendezvous hashing (Thaler and Ravishankar, 1996) instead of points on a circle: exact balance without virtual nodes
and a full order of preference rather than one owner. Weighted as in Schindelhauer and Schomaker (2005):
score = -ln(hash) / weight, the lowest first. A cryptographic digest of each pair would take most of a millisecond for
a thousand workers: each name and each conversation is digested once, and the finaliser of MurmurHash3 mixes the two.
"""

import hashlib
import math
from collections.abc import Iterable
from functools import lru_cache

_MASK = 2**64 - 1
_MIX_1 = 0xFF51AFD7ED558CCD
_MIX_2 = 0xC4CEB9FE1A85EC53
_UNIT = 1 / (2**64 + 2**12)  # so that even the highest hash is below 1 as a float
NAMES_KEPT = 4096


class Ring:
    """The workers (name, weight > 0) among which conversations are spread."""

    def __init__(self, workers: Iterable[tuple[str, float]]) -> None:
        self._marks = [(_digest_of_name(name), 1 / weight, name) for name, weight in workers]

    def preference(self, conversation: str, count: int | None = None) -> list[str]:
        """The `count` names (None: all) that are preferred, the first before all; the same on every machine."""
        key = _digest(conversation)
        scores = [-math.log(_share(mark ^ key)) * rarity for mark, rarity, _ in self._marks]
        count = len(scores) if count is None else min(count, len(scores))
        if not count:
            return []
        last = sorted(scores)[count - 1]
        names = (name for _, _, name in self._marks)
        best = sorted((score, name) for score, name in zip(scores, names, strict=True) if score <= last)
        return [name for _, name in best[:count]]


def preference(conversation: str, workers: Iterable[tuple[str, float]]) -> list[str]:
    """Names of `workers` (name, weight > 0), the most preferred first."""
    return Ring(workers).preference(conversation)


def _share(bits: int) -> float:
    """64 bits as an evenly spread number between 0 and 1, both excluded."""
    bits = bits * _MIX_1 & _MASK
    bits = (bits ^ (bits >> 32)) * _MIX_2 & _MASK
    return (bits + 1) * _UNIT


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


_digest_of_name = lru_cache(NAMES_KEPT)(_digest)
