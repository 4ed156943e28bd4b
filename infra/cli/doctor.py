"""`corral doctor`: what would stop Corral here, or slow it, and what to do about it.

Owns: how the findings are shown, and the exit code.
Never: looks at the machine itself; `infra.cli.findings` does.
"""

import typer
from rich.text import Text

from infra.cli import console, options
from infra.cli.findings import CHECKS, Level

STYLE_OF = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}


def doctor(model: options.Model = None, gpu: options.Gpu = None, data_dir: options.DataDir = None) -> None:
    """Check this machine for all that `corral up` and `corral claude` need.

    Exit code 1 if something fails; a warning does not count.
    """
    settings = options.load_with(model=model, gpu=gpu, data_dir=data_dir).settings
    findings = [check(settings) for check in CHECKS]
    table = console.grid("", "Check", "Finding", whole=("Finding",))
    for found in findings:
        words = Text(found.text)
        if found.remedy:
            words.append(f"\n-> {found.remedy}", style="italic")
        table.add_row(Text(found.level, style=STYLE_OF[found.level]), found.subject, words)
    console.show(table)
    failed = sum(found.level is Level.FAIL for found in findings)
    warned = sum(found.level is Level.WARN for found in findings)
    console.say(f"\n{failed} failed, {warned} to look at, {len(findings) - failed - warned} fine.")
    raise typer.Exit(1 if failed else 0)
