"""Which key's owner is calling.

Owns: digests of the keys and the comparison.
Never: a key in clear text beyond the constructor; what an owner may do.
"""

from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest

from infra.errors import NotAuthenticated

LOCAL = "local"  # the caller's name where no keys are set, which only loopback allows


class Keyring:
    """The keys that may ask, by name. Without any, everyone who reaches the port is `local`."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._digests = {name: _digest(key) for name, key in keys.items()}

    @property
    def open(self) -> bool:
        """True when no keys are set."""
        return not self._digests

    def caller(self, headers: Mapping[str, str]) -> str:
        """The name of the key in `x-api-key` or `authorization: Bearer`. Raises NotAuthenticated.

        Claude Code sends both when both are set in its environment; one that fits is enough.
        """
        if self.open:
            return LOCAL
        offered = _offered(headers)
        if not offered:
            raise NotAuthenticated("no key given: send it as x-api-key or as Authorization: Bearer")
        # Every pair is compared to its end, so the time taken tells nothing about where a guess went wrong.
        matches = [name for key in offered for name, digest in self._digests.items() if compare_digest(key, digest)]
        if not matches:
            raise NotAuthenticated("this key is not known here: check x-api-key or Authorization: Bearer")
        return matches[0]


def _offered(headers: Mapping[str, str]) -> list[bytes]:
    scheme, _, token = headers.get("authorization", "").strip().partition(" ")
    candidates = [headers.get("x-api-key", ""), token if scheme.lower() == "bearer" else ""]
    return [_digest(candidate.strip()) for candidate in candidates if candidate.strip()]


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogatepass")).digest()
