"""The engine's speed ladder: one setting at a time, on the given model, and the lines for `corral.toml`.

    python -m infra.bench.engine --model PATH [--rungs kv,flash]

Owns: the command line, the order A B A B of each rung, and the report.
Never: two engines at once; on a GPU they would not fit. Each start loads the model again, so big models take long.
"""

import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from math import prod
from time import monotonic
from typing import Annotated, Any

import typer

from infra import engine_options, machine, model_setting
from infra.bench import agents_house, ladder_engine, progress, report
from infra.bench import house as houses
from infra.bench.agents_house import EngineCommand
from infra.bench.command import JsonFile, Model, run
from infra.bench.ladder import Ladder, Measured, Setting, Verdict, chosen, judge
from infra.bench.ladder_engine import Work
from infra.bench.report import Figures
from infra.errors import ConfigError, EngineError, StartError

MEGABYTE = 2**20
SAID = "error: "  # how a part begins its last line
SHOWN = 160  # characters of why an engine did not start

Told = Callable[[str], None]


def main(
    model: Model = "demo",
    rungs: Annotated[
        str, typer.Option(help="Of threads, flash, kv, batch, ubatch, ngram, with commas; none: all.")
    ] = "",
    slots: Annotated[int, typer.Option(min=1, max=64, help="Slots of the engine.")] = 4,
    context: Annotated[int, typer.Option(min=512, help="Window of a slot.")] = 8_192,
    threads: Annotated[int, typer.Option(min=0, help="Threads of the base line; 0: cores less one.")] = 0,
    engine_args: Annotated[str, typer.Option(help="Flags of the base line, as in corral.toml (-ngl 99).")] = "",
    llama_server: Annotated[str, typer.Option(help="The engine; none: found as by corral up.")] = "",
    prompt: Annotated[int, typer.Option(min=16, help="Words of a prompt.")] = 300,
    tokens: Annotated[int, typer.Option(min=8, help="Tokens of an answer.")] = 64,
    times: Annotated[int, typer.Option(min=1, help="Prompts and answers of each start.")] = 2,
    rounds: Annotated[int, typer.Option(min=2, help="Starts of each side of a rung, in turn.")] = 2,
    json_file: JsonFile = None,
) -> None:
    """Find the engine settings that make this model faster on this machine, one at a time.

    Each setting is compared with all that was kept before it, in turn (A B A B). The best of a rung is kept if it
    helped by more than the noise. The model is loaded for each of some 32 starts. All advice is measured here, for this
    machine alone. Memory is that of the engine's process in RAM: what a card holds is not counted.
    """
    _check(model, prompt, tokens, context)
    cores, given = machine.cores(), engine_options.split(engine_args)
    base_threads = threads or max(1, cores - 1)
    to_try = chosen(rungs, cores, base_threads)
    command = report.command_line("infra.bench.engine")
    print(f"$ {command}")
    settings: dict[str, Any] = {"slots": slots, "context_tokens": context, "threads": base_threads}
    settings |= {"engine_args": engine_args} | ({"llama_server": llama_server} if llama_server else {})
    steps = _measure(model, settings, to_try.values(), Work(prompt, tokens, slots, times), rounds)
    _show(steps, slots)
    lines = Ladder([step.setting for step in steps if step.kept]).lines(given)
    _recommend(lines)
    report.save(json_file, command, {"machine": _machine(), "steps": [step_figures(s) for s in steps], "toml": lines})


def _check(model: str, prompt: int, tokens: int, context: int) -> None:
    """Raises StartError for a model that is not there, ConfigError for a prompt that cannot fit."""
    model_setting.read(model)
    if prompt * 2 + tokens > context:
        raise ConfigError(f"--prompt {prompt}: with --tokens {tokens} it does not fit into --context {context}")


@dataclass(slots=True)
class Step:
    """One row of the table: a setting, its figures and what came of it. The first is the base line."""

    setting: Setting
    tried: list[Measured] = field(default_factory=list)
    base: list[Measured] = field(default_factory=list)
    verdict: Verdict | None = None
    kept: bool = False
    problem: str = ""


def climb(
    command: EngineCommand, rungs: Iterable[Sequence[Setting]], work: Work, rounds: int, told: Told
) -> list[Step]:
    """All rungs in turn; of what helped on one, that which helped most is kept.

    Raises StartError or EngineError when the base line itself does not work. A setting that this engine or model does
    not take is told and left out.
    """
    ladder, began_s = Ladder(), monotonic()
    steps = [Step(Setting("base line", {}), [ladder_engine.measured(command, {}, work, told)])]
    start_s = monotonic() - began_s
    left = list(rungs)
    while left:
        starts = rounds * sum(1 + len(settings) for settings in left)
        settings = left.pop(0)
        tell = partial(_tell, told, f"{settings[0].name}, in all about {starts * start_s / 60:.0f} min left")
        tried = _rung(command, ladder, settings, work, rounds, tell)
        best = best_of(tried)
        if best is not None:
            best.kept = True
            ladder.kept.append(best.setting)
        steps += tried
    return steps


def best_of(steps: Sequence[Step]) -> Step | None:
    """What helped most; None when nothing did."""
    helped = [step for step in steps if step.verdict is not None and step.verdict.helped]
    return max(helped, key=lambda step: step.verdict.gain if step.verdict else 0, default=None)


def _tell(told: Told, about: str, text: str) -> None:
    told(f"{about}: {text}")


def _rung(
    command: EngineCommand, ladder: Ladder, settings: Sequence[Setting], work: Work, rounds: int, told: Told
) -> list[Step]:
    """The base line and each setting in turn, so that all meet the same machine."""
    base: list[Measured] = []
    steps = {setting.name: Step(setting) for setting in settings}
    for _ in range(rounds):
        base.append(ladder_engine.measured(command, ladder.flags, work, told))
        for step in steps.values():
            if step.problem:
                continue
            try:
                flags = ladder.flags | dict(step.setting.flags)
                step.tried.append(ladder_engine.measured(command, flags, work, told))
            except (StartError, EngineError) as error:
                step.problem = str(error).strip().splitlines()[-1][:SHOWN]
    for step in steps.values():
        if not step.problem:
            step.base, step.verdict = base, judge(base, step.tried)
    return list(steps.values())


def step_figures(step: Step) -> Figures:
    """A step for the JSON file."""
    figures: Figures = {"setting": step.setting.name, "flags": dict(step.setting.flags), "problem": step.problem}
    figures |= {"tried": [asdict(one) for one in step.tried], "base": [asdict(one) for one in step.base]}
    return figures | ({"verdict": asdict(step.verdict), "kept": step.kept} if step.verdict else {})


def _measure(
    model: str, settings: dict[str, Any], rungs: Iterable[Sequence[Setting]], work: Work, rounds: int
) -> list[Step]:
    # The demo model is assembled in the data folder, and each engine loads it from there.
    with progress.telling() as told, tempfile.TemporaryDirectory(prefix="corral-ladder-") as folder:
        told("looking how Corral runs this model's engine")
        return climb(_command(model, settings | {"data_dir": folder}), rungs, work, rounds, told)


def _command(model: str, settings: dict[str, Any]) -> EngineCommand:
    """How Corral itself runs the engine of these settings. Raises StartError with the part's own sentence."""
    try:
        with houses.started(model, store_dir="off", **settings) as house:
            return agents_house.commands_of(house)[0]
    except StartError as error:
        said = [line for line in str(error).splitlines() if line.startswith(SAID)]
        if not said:
            raise
        raise StartError("bench", said[-1].removeprefix(SAID)) from None


def _show(steps: Sequence[Step], slots: int) -> None:
    columns = ("prefill, tokens/s", "decode 1 slot", f"decode {slots} slots", "MiB", "faster", "noise", "")
    table = report.by_name(columns, f"Engine, one setting at a time; {_machine()}")
    for step in steps:
        table.add_row(step.setting.name, *_cells(step))
    console = report.paper()
    console.print(table)
    console.print("faster: beside what was kept before, in turn with it; the base line's row is its first start alone.")
    gains = [step.verdict.gain for step in steps if step.kept and step.verdict]
    console.print(f"All that was kept, one on the other: {prod(gains):.2f} times as fast.", highlight=False)
    for step in steps:
        if step.problem:
            console.print(f"- {step.setting.name}: not possible here: {step.problem}", markup=False, highlight=False)


def _cells(step: Step) -> tuple[str, ...]:
    if step.problem:
        return ("-",) * 6 + ("not possible",)
    last = sorted(step.tried, key=lambda one: one.turn_s)[(len(step.tried) - 1) // 2]
    speeds = (last.prefill_per_s, last.decode_per_s, last.decode_all_per_s, last.memory_bytes / MEGABYTE)
    figures = tuple(f"{value:,.0f}" if value >= 100 else f"{value:.1f}" for value in speeds)
    if step.verdict is None:
        return (*figures, "", "", "")
    guessed = f", {last.accepted:.0%} guessed right" if last.accepted is not None else ""
    what = f"{'kept' if step.kept else 'left'}: {step.verdict.why}{guessed}"
    return (*figures, f"{step.verdict.gain:.2f}x", f"{step.verdict.noise:.0%}", what)


def _recommend(lines: Sequence[str]) -> None:
    if not lines:
        print("Nothing helped beyond the noise: leave the engine settings as they are.")
        return
    print("For corral.toml:\n")
    for line in lines:
        print(f"    {line}")
    if any("-ctk" in line for line in lines):
        print("\nA smaller KV cache rounds what the model remembers; look at its answers before you keep it.")
    if any("--spec-type" in line for line in lines):
        print("\nGuessing was tried where it is best: answers that repeat a text, as edits of a file do.")


def _machine() -> str:
    cards = ", ".join(machine.card_names()) or "no GPU"
    return f"{machine.cores()} CPU cores, {cards}"


if __name__ == "__main__":
    sys.exit(run(main))
