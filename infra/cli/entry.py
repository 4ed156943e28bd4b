"""What the installed `corral` calls: the command, and no stack trace when Ctrl-C comes while it is being loaded.

Owns: the exit code of that moment.
Never: anything else (`main`).
"""

import sys

from infra.exit_codes import INTERRUPTED

try:
    from infra.cli.main import main
except KeyboardInterrupt:
    sys.exit(INTERRUPTED)

__all__ = ["main"]
