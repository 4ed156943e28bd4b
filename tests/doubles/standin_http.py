"""HTTP as the stand-in engine reads and writes it.

Owns: a reader that tells when the other side hangs up, and the parts of a request.
Never: a route. The standard library only.
"""

import asyncio


class Reader(asyncio.StreamReader):
    """A reader that tells at once when the other side has hung up."""

    def __init__(self) -> None:
        super().__init__(limit=64 * 1024 * 1024)
        self.gone = asyncio.Event()

    def feed_eof(self) -> None:
        super().feed_eof()
        self.gone.set()

    def set_exception(self, exc: BaseException) -> None:
        super().set_exception(exc)  # type: ignore[arg-type]
        self.gone.set()


def head_of(raw: bytes) -> tuple[str, str, dict[str, str]]:
    """Method, target and headers of a request."""
    first, *lines = raw.decode("latin-1").strip().split("\r\n")
    method, target, _ = first.split(" ", 2)
    pairs = (line.partition(":") for line in lines)
    return method, target, {name.lower().strip(): value.strip() for name, _, value in pairs}


def slot_of(path: str) -> str:
    """The slot that a path names, as it stands there; empty when it names none."""
    return path.removeprefix("/slots/") if path.startswith("/slots/") else ""


def keys_of(headers: dict[str, str]) -> set[str]:
    """The keys that a request carries."""
    return {headers.get("authorization", "").removeprefix("Bearer "), headers.get("x-api-key", "")}


def torn(event: bytes) -> list[bytes]:
    """The event cut inside its first character of several bytes, if it has one."""
    cut = next((number for number, byte in enumerate(event) if byte > 0x7F), None)
    return [event] if cut is None else [event[: cut + 1], event[cut + 1 :]]
