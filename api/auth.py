"""Which key's owner is calling.

Owns: digests of the keys and the comparison; and, where no keys are set, keeping pages of the web out.
Never: a key in clear text beyond the constructor; what an owner may do.
"""

from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from hmac import compare_digest
from urllib.parse import urlsplit

from infra.errors import NotAllowed, NotAuthenticated
from infra.network import is_loopback

URLS_KEPT = 16
LOCAL = "local"  # the caller's name where no keys are set, which only loopback allows


class Keyring:
    """The keys that may ask, by name. Without any, every program of this machine is `local`."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._digests = {name: _digest(key) for name, key in keys.items()}

    @property
    def open(self) -> bool:
        """True when no keys are set."""
        return not self._digests

    def caller(self, headers: Mapping[str, str]) -> str:
        """The name of the key in `x-api-key` or `authorization: Bearer`.

        Raises NotAuthenticated; without keys NotAllowed for a browser's page of elsewhere.
        Claude Code sends both when both are set in its environment; one that fits is enough.
        """
        if self.open:
            _check_local(headers)
            return LOCAL
        offered = _offered(headers)
        if not offered:
            raise NotAuthenticated("no key given: send it as x-api-key or as Authorization: Bearer")
        # Every pair is compared to its end, so the time taken tells nothing about where a guess went wrong.
        matches = [name for key in offered for name, digest in self._digests.items() if compare_digest(key, digest)]
        if not matches:
            raise NotAuthenticated("this key is not known here: check x-api-key or Authorization: Bearer")
        return matches[0]


def _check_local(headers: Mapping[str, str]) -> None:
    """A browser reaches this port too, for any page: the page's own name in `origin`, or one made to lead here in
    `host` (DNS rebinding), tells it."""
    host, origin = headers.get("host"), headers.get("origin")
    if host is not None and not _leads_here(f"//{host}"):
        raise NotAllowed("host: without keys only localhost is answered; set CORRAL_API_KEYS to use another name")
    if origin is not None and not _leads_here(origin):
        raise NotAllowed("origin: without keys no web page of elsewhere is answered; set CORRAL_API_KEYS to allow it")


@lru_cache(URLS_KEPT)  # a client says the same in each of its requests
def _leads_here(url: str) -> bool:
    return is_loopback(_host_of(url))


def _host_of(url: str) -> str:
    """The host in `url`, empty when there is none; without the dot that ends a full name."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return "" if "@" in parts.netloc else (parts.hostname or "").removesuffix(".")


def _offered(headers: Mapping[str, str]) -> list[bytes]:
    scheme, _, token = headers.get("authorization", "").strip().partition(" ")
    candidates = [headers.get("x-api-key", ""), token if scheme.lower() == "bearer" else ""]
    return [_digest(candidate.strip()) for candidate in candidates if candidate.strip()]


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogatepass")).digest()
