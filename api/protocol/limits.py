"""How long a client is willing to wait for its answer, as its headers say.

Owns: the three headers and their bounds.
Never: a clock; who keeps to the limits (`api.answer`, the worker).
"""

import re
from collections.abc import Mapping

from infra.errors import BadRequest
from scheduler.contract import Limits

TOTAL_HEADER = "X-Corral-Timeout"
FIRST_HEADER = "X-Corral-First-Token-Timeout"
BETWEEN_HEADER = "X-Corral-Between-Tokens-Timeout"
LONGEST_S = 86_400.0


def limits(headers: Mapping[str, str]) -> Limits:
    """From lower-case `headers`. Raises BadRequest that names the header."""
    return Limits(
        total_s=_seconds(headers, TOTAL_HEADER),
        first_token_s=_seconds(headers, FIRST_HEADER),
        between_tokens_s=_seconds(headers, BETWEEN_HEADER),
    )


def _seconds(headers: Mapping[str, str], name: str) -> float | None:
    text = headers.get(name.lower(), "").strip()
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,5}(\.[0-9]{1,3})?", text) or not 0 < float(text) <= LONGEST_S:
        raise BadRequest(f"must be a number of seconds above 0 and at most {LONGEST_S:.0f}, as 30 or 2.5", field=name)
    return float(text)
