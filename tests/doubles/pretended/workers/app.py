"""Pretends to be a worker: says that it is ready.

Owns: its file in the folder that the pretended API shows.
Never: a broker, an engine.
"""

import json
import os
import signal
import sys
from pathlib import Path

FOLDER = Path(os.environ["PRETENDED_FOLDER"])
NAME = os.environ["CORRAL_WORKER_NAME"]


def main() -> int:
    """Run until SIGTERM, or fail at once where PRETENDED_FAILS names this worker."""
    if os.environ.get("PRETENDED_FAILS") == NAME:
        sys.stderr.write("loading\nerror: worker: the model cannot be loaded: out of memory\n")
        return 1
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    info = {"name": NAME, "state": "ready", "model": "anthropic-pretended", "context_tokens": 65536}
    written = FOLDER / f"{NAME}.tmp"
    written.write_text(json.dumps(info | {"slots": [{"slot": 0}], "gpu": os.environ["CORRAL_GPU"]}))
    written.rename(FOLDER / f"{NAME}.json")
    signal.sigwait({signal.SIGTERM})
    return 0


if __name__ == "__main__":
    sys.exit(main())
