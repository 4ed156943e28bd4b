"""From settings to numbers: slots, scratch slots and window of one engine, wherever the settings say `auto`.

Owns: the one place where `auto` becomes a number, and the words when it cannot.
Never: the sum itself (`infra.gguf_plan`), or a second answer later on: an engine that is started again gets the same.

`corral up` asks for all of its workers before it starts one, since workers that share a device divide it. A worker
started alone asks for itself.
"""

from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path

import structlog

from infra import device, engine_options, gguf_plan, model_facts, model_setting
from infra.config import AUTO, Settings
from infra.device import MAIN_MEMORY
from infra.engine_options import EngineOptions
from infra.errors import ConfigError, StartError
from infra.gguf_file import read_header
from infra.gguf_plan import FIRST_REQUEST_TOKENS, LEAST_WINDOW_TOKENS, TARGET_SHARE, Memory, Plan, Wanted
from infra.model_facts import Facts
from infra.model_setting import DEMO, DEMO_PACKAGE, HfModel

GIB = 2**30
SMALLER_KV_TYPES = ("q8_0", "q4_0")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Shape:
    """What an engine is started with. `slots` are for conversations, `scratch_slots` come after them."""

    slots: int
    scratch_slots: int
    context_tokens: int

    @property
    def engine_slots(self) -> int:
        return self.slots + self.scratch_slots


def shape(settings: Settings) -> Shape:
    """The numbers in settings. Raises ConfigError for an `auto` that nobody resolved.

    Scratch slots of a model that nobody looked at are none.
    """
    slots, context_tokens, scratch = settings.slots, settings.context_tokens, settings.scratch_slots
    if isinstance(slots, str) or isinstance(context_tokens, str):
        raise ConfigError(f"{_auto_options(settings)}: the numbers are not known yet; give them")
    return Shape(slots, 0 if scratch == AUTO else scratch, context_tokens)


def is_auto(settings: Settings) -> bool:
    """Is there a number of slots or tokens to be found?"""
    return AUTO in (settings.slots, settings.context_tokens)


def resolved(settings: Settings, model: Path | HfModel) -> Settings:
    """Settings of one worker alone on its device, with numbers in place of every `auto`.

    Raises StartError when nothing fits or the file does not say enough, ConfigError when the model is not here yet.
    """
    if is_auto(settings):
        plan = planned(settings, facts_of(settings, model), device.memory(settings))
        log.info("worker.sized", **asdict(plan))
        return with_plan(settings, plan)
    if settings.scratch_slots == AUTO:
        return settings.model_copy(update={"scratch_slots": _scratch_slots(model)})
    return settings


def facts_of(settings: Settings, model: Path | HfModel | None = None) -> Facts:
    """What is known of the model and of files that are loaded beside it. Raises ConfigError for a model that is not on
    this machine, StartError for one that cannot be read. Without `model` it is that of the settings."""
    wanted = model_setting.read(settings.model) if model is None else model
    if isinstance(wanted, HfModel):
        words = "the model is not on this machine yet, so its size is not known"
        raise ConfigError(f"{_auto_options(settings)}: {words}; download it and give its path, or give numbers")
    facts = _demo_facts() if wanted == DEMO else model_facts.read(Path(wanted))
    beside = sum(file.stat().st_size for file in engine_options.read(settings.engine_args).files)
    return replace(facts, weights_bytes=facts.weights_bytes + beside)


def planned(settings: Settings, facts: Facts, memory: Memory, sharers: int = 1) -> Plan:
    """The numbers for one of `sharers` engines on a device. Raises StartError that says which setting would fit, and
    ConfigError for flags that move parts of the model elsewhere."""
    options = engine_options.read(settings.engine_args)
    _refuse_elsewhere(settings, options, facts, memory)
    wanted = _wanted(settings)
    plan = gguf_plan.choose(facts, options, wanted, memory, sharers)
    if plan is None:
        raise StartError("memory", _refusal(facts, options, wanted, memory, sharers))
    return plan


def as_set(settings: Settings, facts: Facts, memory: Memory, sharers: int = 1) -> Plan:
    """What numbers that are set come to, whether they fit or not."""
    numbers = shape(settings)
    scratch = gguf_plan.scratch_slots(facts) if settings.scratch_slots == AUTO else numbers.scratch_slots
    options = engine_options.read(settings.engine_args)
    return gguf_plan.plan(facts, options, (numbers.slots, scratch, numbers.context_tokens), memory, sharers)


def with_plan(settings: Settings, plan: Plan) -> Settings:
    """The settings with a plan's numbers."""
    numbers = {"slots": plan.slots, "scratch_slots": plan.scratch_slots, "context_tokens": plan.context_tokens}
    return settings.model_copy(update=numbers)


def _scratch_slots(model: Path | HfModel) -> int:
    """None for a model of which nothing is known: the engine fetches it, or its file leaves out what it should say."""
    if isinstance(model, HfModel):
        return 0
    try:
        return gguf_plan.scratch_slots(model_facts.read(model))
    except StartError:
        return 0


def _demo_facts() -> Facts:
    """From the first piece of the demo model's package, which holds the header; it may not be assembled yet."""
    pieces = [Path(piece) for piece in import_module(DEMO_PACKAGE).chunk_paths()]
    return model_facts.facts(read_header(pieces[0]), sum(piece.stat().st_size for piece in pieces), DEMO)


def _wanted(settings: Settings) -> Wanted:
    slots, context_tokens, scratch = settings.slots, settings.context_tokens, settings.scratch_slots
    return Wanted(
        slots=None if slots == AUTO else slots,
        context_tokens=None if context_tokens == AUTO else context_tokens,
        scratch_slots=None if scratch == AUTO else scratch,
    )


def _auto_options(settings: Settings) -> str:
    options = {"--slots auto": settings.slots, "--context auto": settings.context_tokens}
    return " ".join(option for option, value in options.items() if value == AUTO)


def _refuse_elsewhere(settings: Settings, options: EngineOptions, facts: Facts, memory: Memory) -> None:
    if memory.where == MAIN_MEMORY:
        return
    few = options.gpu_layers is not None and options.gpu_layers < facts.layers
    flag = options.elsewhere or ("-ngl" if few else "")
    if flag:
        words = f"engine_args: {flag} keeps a part of the model off the card, which is not planned for"
        raise ConfigError(f"{_auto_options(settings)}: {words}; give numbers, or leave {flag} out")


def _refusal(facts: Facts, options: EngineOptions, wanted: Wanted, memory: Memory, sharers: int) -> str:
    if wanted.context_tokens is None and facts.trained_tokens < LEAST_WINDOW_TOKENS:
        words = f"the model was trained for a window of {facts.trained_tokens} tokens"
        first = f"Claude Code's first request alone takes about {FIRST_REQUEST_TOKENS}"
        return f"{words}, and {first}; take another model, or give --context as a number"
    window, slots = wanted.context_tokens or LEAST_WINDOW_TOKENS, wanted.slots or 1
    least = gguf_plan.plan(facts, options, (slots, wanted.scratch_slots or 0, window), memory, sharers)
    shared = f", shared by {sharers} workers" if sharers > 1 else ""
    limit = f"{TARGET_SHARE:.0%} of {_gib(memory.total_bytes)}, less what is in use{shared}"
    needs = f"{_slots(least.engine_slots)} of {window} tokens and {_gib(least.weights_bytes)} of weights"
    room = f"{_gib(least.budget_bytes)} of {memory.where} may be used ({limit})"
    remedies = [*_remedies(facts, options, wanted, memory, sharers), "a smaller model or quantisation"]
    return f"{needs} need {_gib(least.total_bytes)}, and {room}; what would fit: {', or '.join(remedies)}"


def _remedies(facts: Facts, options: EngineOptions, wanted: Wanted, memory: Memory, sharers: int) -> list[str]:
    """Settings that would each do by itself, as they are written."""
    found: list[str] = []
    for kv_type in SMALLER_KV_TYPES:
        smaller = replace(options, key_type=kv_type, value_type=kv_type)
        if gguf_plan.choose(facts, smaller, wanted, memory, sharers):
            found.append(f'--engine-args "-ctk {kv_type} -ctv {kv_type}"')
            break
    if wanted.slots and (fewer := gguf_plan.choose(facts, options, replace(wanted, slots=None), memory, sharers)):
        found.append(f"--slots {fewer.slots}")
    if wanted.scratch_slots and gguf_plan.choose(facts, options, replace(wanted, scratch_slots=0), memory, sharers):
        found.append("CORRAL_SCRATCH_SLOTS=0")
    less = replace(wanted, context_tokens=LEAST_WINDOW_TOKENS)
    if (wanted.context_tokens or 0) > LEAST_WINDOW_TOKENS and gguf_plan.choose(facts, options, less, memory, sharers):
        found.append(f"--context {LEAST_WINDOW_TOKENS}")
    fits = [n for n in range(sharers - 1, 0, -1) if gguf_plan.choose(facts, options, wanted, memory, n)]
    if fits:
        found.append(f"--workers {fits[0]}")
    return found


def _slots(count: int) -> str:
    return "1 slot" if count == 1 else f"{count} slots"


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
