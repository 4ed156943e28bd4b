"""Files that other workers will want, and that this one is about to write.

Owns: the locks that say so, until the file can be found by all or will not come.
Never: writes a file.

A lock is one of the store's (`Store.making`): it ends with the process that holds it, however that ends.
"""

import threading
from contextlib import ExitStack

from workers.store import Store


class Promises:
    """Shared by the threads of a worker. What touches the folder raises StoreError."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._held: dict[str, ExitStack] = {}

    @property
    def names(self) -> set[str]:
        with self._lock:
            return set(self._held)

    def give(self, what: str) -> None:
        """Whoever looks for `what` from now on waits for it. Another worker's promise of the same stands."""
        with ExitStack() as lock:
            if lock.enter_context(self._store.making(what, 0, threading.Event())):
                with self._lock:
                    self._held[what] = lock.pop_all()

    def hand_over(self, what: str, lock: ExitStack) -> None:
        """Keep the lock on a file that was written and has no description yet, so that nobody else would find it.

        Whoever describes it calls `release`. Looking and keeping are one step, or a description in between would leave
        the lock for ever.
        """
        with self._lock:
            if self._store.is_fresh(what):
                self._held[what] = lock.pop_all()

    def release(self, what: str) -> None:
        """The file is there, or will not come: nobody need wait any longer."""
        with self._lock:
            lock = self._held.pop(what, None)
        if lock is not None:
            lock.close()

    def wait(self, what: str, limit_s: float, stopped: threading.Event) -> None:
        """Until no other worker promises `what`, `limit_s` at most, or until `stopped`."""
        if self._store.is_promised(what) and what not in self.names:
            with self._store.making(what, limit_s, stopped):
                pass
