"""The arms of a comparison: what each one is, started for the run or running already.

Owns: which arms there are, and that each is opened for its own turn only and closed after it.
Never: the order of the arms, a figure.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from pydantic import ValidationError

from infra.bench import agents_house
from infra.bench import house as houses
from infra.bench.address import Address, check_answers
from infra.bench.agents_house import Counter
from infra.bench.agents_replay import Direct, Gateway, Side
from infra.bench.agents_routing import POLICIES, Pinned, RoundRobin, policy
from infra.bench.agents_session import Shape
from infra.bench.asking import CHAT, MESSAGES
from infra.bench.house import Engine
from infra.config import Settings
from infra.errors import ConfigError

CORRAL = "corral"
STORE_OFF = "store_dir=off"


@dataclass(frozen=True, slots=True)
class Opened:
    """An arm that can be asked now. `about` says what it is in a few words."""

    side: Side
    counter: Counter
    about: str


Opening = Callable[[Shape], AbstractContextManager[Opened]]
T = TypeVar("T")


class Counted(Protocol):
    """Does some work that needs to count tokens, with a counter that is there for this only."""

    def __call__(self, work: Callable[[Counter], T]) -> T: ...


@dataclass(frozen=True, slots=True)
class Staff:
    """What `--start` starts: workers of Corral, and as many engines for the arms without it."""

    model: str
    workers: int
    settings: Mapping[str, Any]
    direct_flags: Sequence[str] = field(default=())


def started(staff: Staff) -> tuple[dict[str, Opening], Counted]:
    """All arms, each started when it is opened; and how to count, done on a Corral that lives for this only."""
    commands: list[agents_house.EngineCommand] = []

    def counted(work: Callable[[Counter], T]) -> T:
        with _house(staff) as house:
            commands[:] = agents_house.commands_of(house)
            return work(Counter(house.url, house.key, MESSAGES))

    @contextmanager
    def corral(_: Shape) -> Iterator[Opened]:
        with _house(staff) as house:
            about = f"{staff.workers} workers, {house.slots} slots in all"
            yield Opened(Gateway(house.url, house.key), Counter(house.url, house.key, MESSAGES), about)

    @contextmanager
    def direct(name: str, shape: Shape) -> Iterator[Opened]:
        with agents_house.engines(commands, staff.direct_flags) as engines:
            yield _direct(name, engines, shape)

    arms: dict[str, Opening] = {CORRAL: corral}
    return arms | {name: partial(direct, name) for name in POLICIES}, counted


def running(gateways: Sequence[Address], engines: Sequence[Engine]) -> tuple[dict[str, Opening], Counted]:
    """The arms that run already: each of `gateways` by its name, and `engines`, if any; and how to count.

    Raises ConfigError when there is nobody to ask, and from counting when nobody answers at one of the addresses.
    """
    arms: dict[str, Opening] = {}
    counters = [Counter(one.url, one.key, one.path) for one in gateways]

    @contextmanager
    def gateway(one: Address, _: Shape) -> Iterator[Opened]:
        side = Gateway(one.url, one.key) if one.path == MESSAGES else Direct([Engine(one.url, one.key)], RoundRobin())
        yield Opened(side, Counter(one.url, one.key, one.path), one.url)

    @contextmanager
    def direct(name: str, shape: Shape) -> Iterator[Opened]:
        yield _direct(name, engines, shape)

    arms |= {one.name: partial(gateway, one) for one in gateways}
    if engines:
        arms |= {name: partial(direct, name) for name in POLICIES}
        counters.append(Counter(engines[0].url, engines[0].key, CHAT))
    if not counters:
        raise ConfigError("give --start, --url URL, --compare URL URL or --engines URL,URL")

    def counted(work: Callable[[Counter], T]) -> T:
        for url in (*(one.url for one in gateways), *(engine.url for engine in engines)):
            check_answers(url)
        return work(counters[0])

    return arms, counted


def settings(store: str, given: Sequence[str], **own: Any) -> dict[str, Any]:
    """Settings of the started Corral from `--store` and `--set NAME=VALUE`. Raises ConfigError."""
    if store not in ("on", "off"):
        raise ConfigError(f"--store {store}: must be on or off")
    changes = dict(own)
    for text in [*([STORE_OFF] if store == "off" else []), *given]:
        name, equals, value = text.partition("=")
        if not equals or name not in Settings.model_fields:
            raise ConfigError(f"--set {text}: must be NAME=VALUE with a name of `corral config`")
        changes[name] = value
    try:
        Settings(**changes)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ConfigError(f"--set {first['loc'][0]}: {first['msg'].lower()}") from None
    return changes


def flags(text: str) -> list[str]:
    """Flags of an engine. Raises ConfigError."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"--direct-flags: {str(error).lower()}") from None


def _house(staff: Staff) -> AbstractContextManager[houses.House]:
    return houses.started(staff.model, staff.workers, **staff.settings)


def _direct(name: str, engines: Sequence[Engine], shape: Shape) -> Opened:
    slots = min(map(agents_house.slots_of, engines))
    chosen = policy(name, shape, len(engines), slots)
    about = f"{len(engines)} engines of {slots} slots"
    if isinstance(chosen, Pinned):
        about += ", a slot each" if chosen.fixed else ", too few to fix them"
    return Opened(Direct(engines, chosen), Counter(engines[0].url, engines[0].key, CHAT), about)
