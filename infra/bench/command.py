"""What every bench does around its own work.

Owns: the options that several share, turning an error of ours into one sentence and an exit code, and that a bench
told to end (SIGTERM) ends what it started, as at Ctrl-C; a Ctrl-C that came before it began is heard then.
Never: measures.
"""

import inspect
import os
import signal
import sys
from collections.abc import Callable, Set
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from infra import config
from infra.cli import gateway
from infra.errors import ConfigError, CorralError
from infra.exit_codes import INTERRUPTED

DEFAULT_URL = "http://127.0.0.1:8000"
FORM = "[NAME=]http://HOST:PORT; one that ends in /v1/chat/completions is asked in the OpenAI form"
HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}
RUNNING = ("--url", "--corral", "--engines")  # name who runs already
SAY_WHO = ("--compare", "--start", "-h", "--help")  # ask others or nobody, as RUNNING does

Start = Annotated[bool, typer.Option("--start", help="Start a broker, an API and a worker for this run.")]
StartedModel = Annotated[str, typer.Option(help="With --start: a GGUF file, or demo.")]
Model = Annotated[str, typer.Option(help="A GGUF file, or demo.")]
Url = Annotated[
    str, typer.Option("--url", "--corral", help="Who runs, as http://HOST:PORT; none: the Corral of these settings.")
]
GivenUrl = Annotated[str, typer.Option("--url", "--corral", help="Who runs, as http://HOST:PORT.")]
SharedKey = Annotated[str, typer.Option(help="The key of all addresses, if they want one.")]
Compare = Annotated[
    list[str] | None,
    typer.Option("--compare", metavar="URL URL ...", help=f"Ask these in turn, A B A B, and tell ratios. {FORM}."),
]
More = Annotated[list[str] | None, typer.Argument(metavar="URL", help="More addresses of --compare.")]


def _writable(path: Path | None) -> Path | None:
    """Raises ConfigError for a file that could not be written: better now than after an hour."""
    if path is not None and (problem := unwritable(path)):
        raise ConfigError(f"--json {path}: {problem}")
    return path


def unwritable(path: Path) -> str:
    """Why a file cannot be written there, as far as that can be told before; empty where it can."""
    folder = path.absolute().parent
    if path.is_dir():
        return "is a folder"
    if not folder.is_dir():
        return f"there is no folder {path.parent}"
    return "" if os.access(path if path.exists() else folder, os.W_OK) else "may not be written"


JsonFile = Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.", callback=_writable)]


def run(main: Callable[..., None]) -> int:
    """Run `main` as a command line. Exit code 0, 130 at Ctrl-C, or 1 with one clear sentence on stderr."""
    # What typer makes of an error of the bench itself would show its variables, keys among them.
    command = typer.Typer(add_completion=False, pretty_exceptions_enable=False, context_settings=HELP_OPTIONS)
    command.command(help=_flowing(main.__doc__ or ""))(main)
    signal.signal(signal.SIGTERM, _end)
    program = Path(sys.argv[0])
    name = program.parent.name if program.stem == "__main__" else program.stem
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # held back while all was imported
        given = {argument.partition("=")[0] for argument in sys.argv[1:]}
        _check(given)
        command(prog_name=f"corral bench {name}", default_map=_own(main, given))
    except KeyboardInterrupt:
        return INTERRUPTED
    except CorralError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:  # a disk that is full, a file that may not be written after all
        print(f"error: {error.filename or 'file'}: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


def _own(main: Callable[..., None], given: Set[str]) -> dict[str, str]:
    """Defaults of the options: where nobody says who is asked it is this machine's Corral, as its settings have it, and
    with its key, which no other address is told. Raises ConfigError."""
    url = inspect.signature(main).parameters.get("url")
    if url is None or url.default != DEFAULT_URL or given & {*RUNNING, *SAY_WHO}:
        return {}
    settings = config.load().settings
    return {"url": gateway.address(settings), "key": gateway.own_key(settings)}


def _check(given: Set[str]) -> None:
    """Raises ConfigError for an address beside --start: it would not be asked, and nobody would be told."""
    for option in RUNNING:
        if option in given and "--start" in given:
            raise ConfigError(f"{option}: asks who runs already; leave --start out")


def _flowing(text: str) -> str:
    """Paragraphs without the line breaks of the source, which typer would keep."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in inspect.cleandoc(text).split("\n\n"))


def _end(number: int, _: object) -> NoReturn:
    """Leave as at an error, through every block that gives something back; told again, it goes on with that."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + number)
