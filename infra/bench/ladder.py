"""Which engine settings there are to try, and which of them are kept.

Owns: the rungs in their order, the flags and the line of `corral.toml` that each stands for, and the judgement: a
setting is kept when it helped by more than the same engine differs from itself.
Never: starts an engine, measures.

Cost is the time of one coding agent's turn with the measured speeds: new tokens of prompt to read, then an answer
written while all slots write. A setting that costs no more than the noise and needs clearly less memory is kept too.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from infra.errors import ConfigError

TURN_PROMPT_TOKENS, TURN_ANSWER_TOKENS = 1_000, 200
LEAST_NOISE = 0.02  # what two runs of one engine differ by on a quiet machine
LESS_MEMORY = 0.95
SMALL_LOSS = 0.05  # of time, that less memory may cost

Flags = Mapping[str, str]  # flag -> value; what the engine is given in place of its own


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing to switch. `threads` stands for itself in `corral.toml`; all else goes into `engine_args`."""

    name: str
    flags: Flags
    threads: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """One start of an engine: medians of its speeds, in tokens a second, and its memory."""

    prefill_per_s: float
    decode_per_s: float
    decode_all_per_s: float
    memory_bytes: int
    accepted: float | None = None  # share of the guessed tokens that were right

    @property
    def turn_s(self) -> float:
        """Seconds of an agent's turn on one of all slots."""
        return TURN_PROMPT_TOKENS / self.prefill_per_s + TURN_ANSWER_TOKENS / self.decode_all_per_s


@dataclass(frozen=True, slots=True)
class Verdict:
    """`gain`: the turn takes this many times less; `noise`: by how much the base line differed from itself."""

    gain: float
    noise: float
    memory: float
    helped: bool
    why: str


@dataclass(slots=True)
class Ladder:
    """What was kept so far."""

    kept: list[Setting] = field(default_factory=list)

    @property
    def flags(self) -> dict[str, str]:
        """Of all settings kept, later ones over earlier ones."""
        return {flag: value for setting in self.kept for flag, value in setting.flags.items()}

    def lines(self, given: Sequence[str]) -> list[str]:
        """For `corral.toml`, with the flags that were `given`; none when nothing helped."""
        threads = [setting.threads for setting in self.kept if setting.threads]
        flags = {flag: value for flag, value in self.flags.items() if flag not in THREAD_FLAGS}
        lines = [f"threads = {threads[-1]}"] if threads else []
        if flags:
            # JSON's text is TOML's: a pattern of tensor names has backslashes.
            lines.append(f"engine_args = {json.dumps(shlex.join(replaced(given, flags)), ensure_ascii=False)}")
        return lines


def replaced(arguments: Sequence[str], flags: Flags) -> list[str]:
    """A command line with these flags in place of its own."""
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        if word in flags:
            next(words, None)
        else:
            kept.append(word)
    return kept + [word for pair in flags.items() for word in pair]


THREAD_FLAGS = ("-t", "-tb")


def rungs(cores: int, base_threads: int) -> dict[str, tuple[Setting, ...]]:
    """name -> what is tried on it, in this order."""
    counts = sorted({max(1, cores // 2), max(1, cores - 1), cores} - {base_threads})
    return {
        "threads": tuple(_threads(count) for count in counts),
        "flash": (Setting("flash attention on", {"-fa": "on"}), Setting("flash attention off", {"-fa": "off"})),
        "kv": (Setting("KV cache in 8 bits", {"-ctk": "q8_0", "-ctv": "q8_0", "-fa": "on"}),),
        "batch": tuple(Setting(f"batch {size}", {"-b": str(size)}) for size in (512, 4096)),
        "ubatch": tuple(Setting(f"micro-batch {size}", {"-ub": str(size)}) for size in (128, 1024)),
        "ngram": tuple(Setting(f"guessing by {kind}", {"--spec-type": kind}) for kind in ("ngram-simple", "ngram-mod")),
    }


def chosen(names: str, cores: int, base_threads: int) -> dict[str, tuple[Setting, ...]]:
    """The rungs of `names` (with commas; empty: all). Raises ConfigError for one that there is not."""
    known = rungs(cores, base_threads)
    wanted = list(filter(None, (name.strip() for name in names.split(",")))) or list(known)
    for name in wanted:
        if name not in known:
            raise ConfigError(f"--rungs {name}: must be of {', '.join(known)}")
    return {name: known[name] for name in known if name in wanted}


def judge(base: Sequence[Measured], tried: Sequence[Measured]) -> Verdict:
    """From starts in turn, base line first: A B A B. Raises ValueError without any."""
    pairs = list(zip(base, tried, strict=True))
    gain = median(a.turn_s / b.turn_s for a, b in pairs)
    memory = median(b.memory_bytes / max(1, a.memory_bytes) for a, b in pairs)
    noise = max(LEAST_NOISE, _spread([one.turn_s for one in base]), _spread([one.turn_s for one in tried]))
    helped, why = _judged(gain, noise, memory)
    return Verdict(round(gain, 3), round(noise, 3), round(memory, 3), helped, why)


def _judged(gain: float, noise: float, memory: float) -> tuple[bool, str]:
    if gain > 1 + noise:
        return True, "faster"
    if gain < 1 - noise:
        return False, "slower"
    if memory >= LESS_MEMORY:
        return False, "within the noise"
    # Much noise must not pass for no loss.
    return (True, "less memory") if gain > 1 - SMALL_LOSS else (False, "less memory, maybe slower")


def _spread(values: Sequence[float]) -> float:
    """How far the same thing lies from itself, as a share of its median."""
    return (max(values) - min(values)) / median(values)


def _threads(count: int) -> Setting:
    return Setting(f"{count} threads", {"-t": str(count), "-tb": str(count)}, count)
