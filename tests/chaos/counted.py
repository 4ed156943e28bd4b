"""A part of Corral, run so that it can be asked how much lives in it.

    python -m tests.chaos.counted FILE MODULE     is `python -m MODULE`; whenever FILE is not there, it is written anew

Owns: the count, which leaves out what a collection would take away, and the thread that makes it.
Never: changes what the part does.
"""

import gc
import runpy
import sys
import threading
import time
from pathlib import Path

from pydantic_core import from_json

LOOK_S = 0.1
CACHED_STRINGS = 16_384


def count_when_asked(file: Path) -> None:
    """Write to `file`, whenever it is not there, the objects of this process that the collector knows, and the blocks
    of memory in use, which small values that hold no others take too. Ends with the process."""
    unfinished = file.with_suffix(".unfinished")
    while True:
        if not file.exists():
            gc.collect()
            objects = len(gc.get_objects()) + gc.get_freeze_count()
            unfinished.write_text(f"{objects} {sys.getallocatedblocks()}")
            unfinished.replace(file)
        time.sleep(LOOK_S)


def _fill_cache_of_strings() -> None:
    """Pydantic keeps the last 16,384 short strings that it read from JSON. It takes an hour until these are full."""
    for number in range(10 * CACHED_STRINGS):
        from_json(f'"{number:036}"', cache_strings="all")


def main() -> None:
    """Never returns: the module ends the process."""
    _, file, module = sys.argv
    _fill_cache_of_strings()
    threading.Thread(target=count_when_asked, args=(Path(file),), name="counting", daemon=True).start()
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
