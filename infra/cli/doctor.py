"""`corral doctor`: what would stop Corral here, or slow it, and what to do about it.

Owns: how the findings are shown, and the exit code.
Never: looks at the machine itself; `infra.cli.findings` does.
"""

import typer
from rich.text import Text

from infra import machine, sizing
from infra.cli import console, options, plan, sizes
from infra.cli.findings import CHECKS, Finding, Level
from infra.config import Loaded
from infra.errors import CorralError
from infra.gguf_plan import FIRST_REQUEST_TOKENS, Plan

STYLE_OF = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}


def doctor(
    model: options.Model = None,
    slots: options.Slots = None,
    context: options.Context = None,
    gpu: options.Gpu = None,
    engine_args: options.EngineArgs = None,
    data_dir: options.DataDir = None,
) -> None:
    """Check this machine for all that `corral up` and `corral claude` need, and how the model fits into its memory.

    Exit code 1 if something fails; a warning does not count.
    """
    loaded = options.load_with(
        model=model, slots=slots, context_tokens=context, gpu=gpu, engine_args=engine_args, data_dir=data_dir
    )
    findings = [check(loaded.settings) for check in CHECKS]
    plans: dict[str, Plan] = {}
    if not any(found.subject == "model" and found.level is Level.FAIL for found in findings):
        plans, of_sizes = _sizes(loaded)
        findings += of_sizes
    table = console.grid("", "Check", "Finding", whole=("Finding",))
    for found in findings:
        words = Text(found.text)
        if found.remedy:
            words.append(f"\n-> {found.remedy}", style="italic")
        table.add_row(Text(found.level, style=STYLE_OF[found.level]), found.subject, words)
    console.show(table)
    if plans:
        console.say("")
        sizes.show(plans)
    failed = sum(found.level is Level.FAIL for found in findings)
    warned = sum(found.level is Level.WARN for found in findings)
    console.say(f"\n{failed} failed, {warned} to look at, {len(findings) - failed - warned} fine.")
    raise typer.Exit(1 if failed else 0)


def _sizes(loaded: Loaded) -> tuple[dict[str, Plan], list[Finding]]:
    """What slots and window come to for the workers that `corral up` would start, and what there is to say of it."""
    cards = machine.cards() if loaded.settings.gpu != "none" else ()
    try:
        plans = sizes.of_workers(loaded.settings, plan.workers(loaded, "auto", cards, machine.cores()))
    except CorralError as error:
        text, _, remedy = error.message.partition("; ")
        # With numbers nothing hangs on it, and what is wrong with the model was found before.
        return {}, [Finding(Level.FAIL, "slots", text, remedy)] if sizing.is_auto(loaded.settings) else []
    return plans, [_judged(plans)]


def _judged(plans: dict[str, Plan]) -> Finding:
    least = min(plans.values(), key=lambda plan: plan.context_tokens)
    text = f"{least.slots} of {least.context_tokens} tokens"
    if not all(plan.fits for plan in plans.values()):
        remedy = "give smaller numbers, or --slots auto --context auto"
        return Finding(Level.WARN, "slots", f"{text}: more than should be taken of the memory that is free", remedy)
    if least.context_tokens < FIRST_REQUEST_TOKENS:
        words = f"Claude Code's first request alone takes about {FIRST_REQUEST_TOKENS}"
        return Finding(Level.WARN, "slots", f"{text}: {words}", "give a larger --context, or auto")
    return Finding(Level.OK, "slots", f"{text} fit into memory")
