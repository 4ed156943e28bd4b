"""Who is asked: an address that runs already, in the Anthropic or in the OpenAI form.

Owns: what a URL on the command line says: a name, the form, the server.
Never: asks, starts anything.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import httpx

from infra.bench.asking import CHAT, MESSAGES, Target
from infra.errors import ConfigError

LOOK_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Address:
    """`url` is the server's without a path; `path` is MESSAGES for the Anthropic form, CHAT for the OpenAI form."""

    name: str
    url: str
    key: str = ""
    path: str = MESSAGES

    def target(self) -> Target:
        """A client of this address, to be closed by whoever asked for it."""
        return Target(self.url, self.key, self.path)


def address(text: str, key: str = "", called: str = "") -> Address:
    """`[NAME=]http://HOST:PORT`; one that ends in /v1/chat/completions is asked in the OpenAI form.

    Without NAME it is `called` so, else by its host. Raises ConfigError for what is no address of a server.
    """
    name, _, url = text.rpartition("=") if "=" in text.partition("//")[0] else ("", "", text)
    path = CHAT if url.rstrip("/").endswith(CHAT) else MESSAGES
    server = url.rstrip("/").removesuffix(path).rstrip("/")
    try:
        parsed = httpx.URL(server)
    except httpx.InvalidURL:
        parsed = httpx.URL("")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(f"{text}: must be an address as http://HOST:PORT or NAME=http://HOST:PORT")
    return Address(name or called or parsed.netloc.decode(), server, key, path)


def addresses(texts: Sequence[str], key: str = "") -> tuple[Address, ...]:
    """Each text, which may hold several with commas, as an address; one that is named twice gets a number.

    Raises ConfigError.
    """
    found = [address(text, key) for given in texts for text in given.split(",") if text]
    seen: Counter[str] = Counter()
    named = []
    for one in found:
        seen[one.name] += 1
        named.append(one if seen[one.name] == 1 else replace(one, name=f"{one.name} #{seen[one.name]}"))
    return tuple(named)


def compared(
    texts: Sequence[str] | None, more: Sequence[str] | None, key: str, *, start: bool = False
) -> tuple[Address, ...]:
    """What `--compare URL URL ...` names; nothing when it is not given. Raises ConfigError for fewer than two, and
    beside --start."""
    if texts and start:
        raise ConfigError("--compare: asks who runs already; leave --start out")
    if not texts:
        if more:
            raise ConfigError(f"{more[0]}: is no option; addresses follow --compare")
        return ()
    found = addresses([*texts, *(more or ())], key)
    if len(found) < 2:
        raise ConfigError("--compare: needs two addresses or more, as --compare http://HOST:PORT http://HOST:PORT")
    return found


def check_answers(url: str) -> None:
    """Raises ConfigError when nobody answers at this address within 10 s. Any answer will do."""
    try:
        httpx.get(url, timeout=LOOK_LIMIT_S, trust_env=False)
    except (httpx.UnsupportedProtocol, httpx.InvalidURL):
        raise ConfigError(f"{url}: must be an address as http://HOST:PORT") from None
    except httpx.HTTPError as error:
        raise ConfigError(f"{url}: nobody answers there ({error}); is it started?") from None
