"""A house whose API and workers can be asked how much lives in them.

Owns: how they are started for that, and the asking.
Never: judges it.
"""

from pathlib import Path

from tests.chaos.house import House
from tests.doubles.processes import python
from tests.doubles.services import wait_for

COUNT_S = 30.0


class CountedHouse(House):
    """A house whose parts run under `counted`."""

    def counts(self) -> dict[str, tuple[int, int]]:
        """API or worker -> the objects that live in it, and the blocks of memory in use. Raises AssertionError."""
        names = [*(f"api{number}" for number in range(len(self.apis))), *self.first_workers]
        for name in names:
            self._file(name).unlink(missing_ok=True)
        return {name: _counted(self._file(name)) for name in names}

    def _command(self, module: str, name: str) -> list[str]:
        return python("-m", "tests.chaos.counted", str(self._file(name)), module)

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.count"


def _counted(file: Path) -> tuple[int, int]:
    wait_for(file.exists, f"{file.name} to be written", COUNT_S)
    objects, blocks = map(int, file.read_text().split())
    return objects, blocks
