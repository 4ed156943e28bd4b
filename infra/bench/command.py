"""What every bench does around its own work.

Owns: turning an error of ours into one sentence and an exit code.
Never: measures.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import typer

from infra.errors import CorralError


def run(main: Callable[..., None]) -> int:
    """Run `main` as a command line. Exit code 0, or 1 with one clear sentence on stderr."""
    command = typer.Typer(add_completion=False)
    command.command()(main)
    try:
        command(prog_name=f"corral bench {Path(sys.argv[0]).stem}")
    except CorralError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
