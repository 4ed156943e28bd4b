"""What this process has seen lately of conversations and of how long answers are.

Owns: a bounded memory of homes and of lengths, so that a conversation's next turn is placed without asking for them.
Never: a store; what is wrong by now: admission looks whether the home is still the same (`lua/admit.lua`).
"""

from collections import OrderedDict
from typing import Generic, TypeVar

from scheduler.contract import JobSpec
from scheduler.policy.claiming import agent_name
from scheduler.policy.lengths import Samples, expected
from scheduler.policy.placement import Home, Known

MOST = 4096  # of each; some 300 bytes a conversation
EVERYONE = "all"

V = TypeVar("V")


def whose(spec: JobSpec) -> str:
    """Whose lengths of answers are most like this one's."""
    return f"{spec.identity.kind}:{agent_name(spec.identity.key_name, spec.identity.agent)}"


class Remembered:
    """One per API process; only its event loop uses it."""

    def __init__(self) -> None:
        # Plain tuples: of these the garbage collector looks at none, however many there are.
        self._homes: _Latest[tuple[str, int, int]] = _Latest()
        self._lengths: _Latest[Samples] = _Latest()

    def known(self, spec: JobSpec) -> Known | None:
        """What is known of a job whose conversation had its last turn through here; None for others."""
        home = self._homes.get(spec.identity.conversation)
        own, everyone = self._lengths.get(whose(spec)), self._lengths.get(EVERYONE)
        if home is None or own is None or everyone is None:
            return None
        return known_of(spec, own, everyone, Home(*home), remembered=True)

    def lives(self, conversation: str, home: Home | None) -> None:
        """Where the conversation lives; None: it is not known any more."""
        self._homes.put(conversation, (home.worker, home.tokens, home.used_ms) if home else None)

    def lengths(self, spec: JobSpec, own: Samples, everyone: Samples) -> None:
        """What the store says of answers like the one to `spec`, and of all."""
        self._lengths.put(whose(spec), own)
        self._lengths.put(EVERYONE, everyone)


class _Latest(Generic[V]):
    """The MOST values used last."""

    def __init__(self) -> None:
        self._values: OrderedDict[str, V] = OrderedDict()

    def get(self, name: str) -> V | None:
        value = self._values.get(name)
        if value is not None:
            self._values.move_to_end(name)
        return value

    def put(self, name: str, value: V | None) -> None:
        self._values.pop(name, None)
        if value is not None:
            self._values[name] = value
        if len(self._values) > MOST:
            self._values.popitem(last=False)


def known_of(spec: JobSpec, own: Samples, everyone: Samples, home: Home | None, *, remembered: bool = False) -> Known:
    """What is known of a job before it is placed."""
    who = spec.identity
    return Known(
        conversation=who.conversation,
        agent=agent_name(who.key_name, who.agent),
        level=spec.level,
        prompt_tokens=spec.prompt_tokens,
        length=expected(own, everyone),
        home=home,
        remembered=remembered,
    )
