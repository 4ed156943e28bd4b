"""Stub; being written."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Script:
    name: str


def write(script: Script, folder: Path) -> Path:
    raise NotImplementedError
