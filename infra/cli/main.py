"""The `corral` command: its subcommands, its global options, and the one place where errors become words.

Owns: the entry point `main`, exit codes (1 for an error, 2 for a wrong option or setting), `--version`, `--config`.
Never: the work of a subcommand.
"""

import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from infra.cli import api, bench, claude, config_command, console, doctor, drain, parts, status, top, up, why
from infra.errors import ConfigError, CorralError

HELP = """Run many coding agents on your own GPUs.

`corral up` starts everything on this machine; `corral claude` opens Claude Code on it.
"""

app = typer.Typer(
    name="corral",
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
)
app.command("up", rich_help_panel="One machine")(up.up)
app.command("claude", rich_help_panel="One machine")(claude.claude)
app.command("status", rich_help_panel="Look")(status.status)
app.command("top", rich_help_panel="Look")(top.top)
app.command("why", rich_help_panel="Look")(why.why)
app.command("doctor", rich_help_panel="Look")(doctor.doctor)
app.command("config", rich_help_panel="Look")(config_command.config)
app.command("bench", rich_help_panel="Look", context_settings=bench.PASSED_ON, add_help_option=False)(bench.bench)
app.command("drain", rich_help_panel="Change")(drain.drain)
app.command("undrain", rich_help_panel="Change")(drain.undrain)
app.command("broker", rich_help_panel="Several machines")(parts.broker)
app.command("worker", rich_help_panel="Several machines")(parts.worker)
app.command("api", rich_help_panel="Several machines")(api.api)
app.command("flower", rich_help_panel="Several machines")(parts.flower)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"corral {version('corral')}")
        raise typer.Exit


@app.callback()
def globals_(
    config: Annotated[
        Path | None, typer.Option("--config", metavar="PATH", help="Settings file; else ./corral.toml if there.")
    ] = None,
    _version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version and stop.")
    ] = False,
) -> None:
    """Options that stand before the subcommand."""
    if config is not None:
        os.environ["CORRAL_CONFIG"] = str(config.absolute())


def main() -> None:
    """Run the command line of this process and leave with its exit code."""
    try:
        app(prog_name="corral")
    except ConfigError as error:
        _leave(error.message, 2)
    except CorralError as error:
        _leave(error.message, 1)
    except OSError as error:
        _leave(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", 1)


def _leave(sentence: str, code: int) -> None:
    console.fail(sentence)
    sys.exit(code)
