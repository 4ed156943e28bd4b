"""What every bench does around its own work.

Owns: the options that several share, and turning an error of ours into one sentence and an exit code.
Never: measures.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from infra.errors import CorralError

DEFAULT_URL = "http://127.0.0.1:8000"
FORM = "[NAME=]http://HOST:PORT; one that ends in /v1/chat/completions is asked in the OpenAI form"

Compare = Annotated[
    list[str] | None,
    typer.Option("--compare", metavar="URL URL ...", help=f"Ask these in turn, A B A B, and tell ratios. {FORM}."),
]
More = Annotated[list[str] | None, typer.Argument(metavar="URL", help="More addresses of --compare.")]


def run(main: Callable[..., None]) -> int:
    """Run `main` as a command line. Exit code 0, or 1 with one clear sentence on stderr."""
    command = typer.Typer(add_completion=False)
    command.command()(main)
    program = Path(sys.argv[0])
    name = program.parent.name if program.stem == "__main__" else program.stem
    try:
        command(prog_name=f"corral bench {name}")
    except CorralError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
