"""Consistent hashing by highest random weight.

Owns: the order in which workers are preferred for a conversation. Adding or losing one of N workers changes the
first choice of about 1/N of the conversations and of no others.
Never: looks at load; `placement` does.

Rendezvous hashing (Thaler and Ravishankar, 1996) instead of points on a circle: exact balance without virtual nodes,
no structure to keep, and a full order of preference rather than one owner. Weighted as in Schindelhauer and
Schomaker (2005): score = -weight / ln(hash).
"""

import hashlib
import math
from collections.abc import Iterable

_SPAN = float(2**64)


def preference(conversation: str, workers: Iterable[tuple[str, float]]) -> list[str]:
    """Names of `workers` (name, weight > 0), the most preferred first; the same on every machine."""
    scored = [(_score(conversation, name, weight), name) for name, weight in workers]
    return [name for _, name in sorted(scored, reverse=True)]


def _score(conversation: str, name: str, weight: float) -> float:
    digest = hashlib.blake2b(f"{name}\0{conversation}".encode(), digest_size=8).digest()
    share = (int.from_bytes(digest, "big") + 1) / (_SPAN + 1)
    return -weight / math.log(share)
