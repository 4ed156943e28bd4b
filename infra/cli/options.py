"""Options that several commands share, and how an option overrides a setting.

Owns: names, bounds and help of the shared options; settings with options over them.
Never: starts or checks anything.
"""

import os
from pathlib import Path
from typing import Annotated

import typer

from infra import config
from infra.config import PREFIX, Loaded
from infra.errors import ConfigError

Model = Annotated[
    str | None,
    typer.Option("--model", metavar="PATH|demo|hf:REPO[:QUANT]", help="Model: a GGUF file, the demo, or a repository."),
]
Slots = Annotated[
    str | None,
    typer.Option("--slots", metavar="N|auto", help="Requests each engine serves at once; auto: as many as fit."),
]
Context = Annotated[
    str | None,
    typer.Option("--context", metavar="TOKENS|auto", help="Window of each slot; auto: the largest that fits."),
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", metavar="N", min=0, help="Engine threads; 0: the cores less one, shared by the workers."),
]
Gpu = Annotated[str | None, typer.Option("--gpu", metavar="LIST", help="Cards, as 0 or 0,1; `none` for the CPU alone.")]
EngineArgs = Annotated[
    str | None,
    typer.Option("--engine-args", metavar='"..."', help="More llama-server flags, as one string, such as `-ngl 99`."),
]
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", metavar="FOLDER", help="Folder for logs, broker data and assembled models.")
]
Url = Annotated[str | None, typer.Option("--url", metavar="URL", help="Address of the API, as http://HOST:PORT.")]
Key = Annotated[
    str | None, typer.Option("--key", metavar="KEY", help="Key for the API; else the first of CORRAL_API_KEYS.")
]

FORM_OF = {
    "slots": "must be a number from 1 to 256, or auto",
    "context_tokens": "must be a number of at least 1, or auto",
    "gpu": "must be card numbers, as 0 or 0,1, or none",
    "worker_name": "must be letters, digits, - and _, at most 63 of them",
}
OPTION_OF = {"context_tokens": "--context", "worker_name": "--name"}


def load_with(**overrides: object) -> Loaded:
    """Settings with every override that is not None; its source is then the option.

    Raises ConfigError that names the option, variable or line that is wrong.
    """
    given = {key: str(value) for key, value in overrides.items() if value is not None}
    environ = dict(os.environ) | {PREFIX + key.upper(): value for key, value in given.items()}
    try:
        loaded = config.load(environ)
    except ConfigError as error:
        raise ConfigError(_named_by_option(error.message, given)) from None
    sources = {key: option(key) if key in given else source for key, source in loaded.sources.items()}
    return loaded.model_copy(update={"sources": sources})


def option(key: str) -> str:
    """The command line option that sets `key`."""
    return OPTION_OF.get(key, "--" + key.replace("_", "-"))


def _named_by_option(message: str, given: dict[str, str]) -> str:
    for key, value in given.items():
        beginning = f"{PREFIX}{key.upper()}: `{key}`: "
        if message.startswith(beginning):
            return f"{option(key)} {value}: {FORM_OF.get(key, message.removeprefix(beginning))}"
    return message
