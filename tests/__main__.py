"""All checks of the house by one command: `python -m tests [PYTEST ARGUMENTS]`.

Owns: the order: format, lint, types, import rules, then the tests of every tier. The first that fails ends it.
With arguments only the tests run, with those arguments.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
CHECKS: tuple[list[str | Path], ...] = (
    [BIN / "ruff", "format", "--check", "."],
    [BIN / "ruff", "check", "."],
    [BIN / "mypy"],
    [BIN / "lint-imports"],
)


def main(arguments: list[str]) -> int:
    """The exit code of the first check that fails, else that of the tests."""
    for check in () if arguments else CHECKS:
        print(f"== {Path(check[0]).name} {' '.join(map(str, check[1:]))}", flush=True)
        code = subprocess.call([str(part) for part in check], cwd=ROOT)
        if code != 0:
            return code
    tests = [sys.executable, "-m", "pytest", *(arguments or ["-m", "not slow", "--durations=15"])]
    print("== pytest", flush=True)
    return subprocess.call(tests, cwd=ROOT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
