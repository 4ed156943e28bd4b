"""The store of saved caches: files in one folder that the workers of a host, or of a network folder, share.

Owns: the files' names, their descriptions and checksums, and the bounds of the folder.
Never: speaks to an engine, judges what pays (`policy.swap`).

    <space>.<what>.<random>.kv    a slot's cache, written by the engine
    <space>.<what>.json           its description: there only when the file is whole, so it is written last

`space` tells apart what must not be mixed: model, engine build, KV types, window, further flags. `what` is
`c-<conversation>` or `b-<base>`. A file is never changed, only replaced by another with a new random part; one that is
removed while somebody reads it stays readable to him.
"""

import fcntl
import hashlib
import json
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import xxhash
from pydantic import Field, NonNegativeInt, TypeAdapter

from infra.errors import StoreError
from infra.store_folder import SPARE_BYTES, too_little_room
from scheduler.policy.chain import Chain
from scheduler.policy.swap import Stored, to_remove

UNFINISHED_S = 600.0  # a file without a description, or a lock, that is older was left by a worker that died
SKEW_S = 60.0  # clocks differ by less; what is from later than this was written before a clock was set back
SWEEP_S = 30.0
POLL_S = 0.02
FILE_NAME = re.compile(r"(.+)\.[0-9a-f]{8}\.kv")  # made once: one for each name would fill the cache of `re`
UNFINISHED_NAME = re.compile(r".+\.[cb]-[0-9a-f]+\.([0-9a-f]{8}\.kv|json\.[0-9a-f]{8}\.tmp|lock)")


@dataclass(frozen=True, slots=True)
class Entry:
    """A saved cache: `tokens` in all, of which `prompt_tokens` are of the prompt `chain`, saved at `written_s`."""

    what: str
    file: str
    size_bytes: NonNegativeInt
    checksum: str
    chain: Chain
    prompt_tokens: NonNegativeInt
    tokens: NonNegativeInt
    return_chance: Annotated[float, Field(ge=0, le=1)]
    uses: NonNegativeInt = 0
    written_s: Annotated[float, Field(allow_inf_nan=False)] = 0.0


_ENTRY = TypeAdapter(Entry)


def conversation_name(conversation: str) -> str:
    return f"c-{conversation}"


def base_name(base: str) -> str:
    return f"b-{base}"


class Store:
    """One space of the folder. Safe to use from several threads, beside other workers' processes."""

    def __init__(
        self, folder: Path, space: str, limit_bytes: int, age_s: float, wall: Callable[[], float] = time.time
    ) -> None:
        """`wall` is a clock that the workers of all machines have in common, more or less."""
        self.wall = wall
        self._folder = folder
        self._space = space
        self._limit_bytes = limit_bytes
        self._age_s = age_s
        self._fresh: dict[str, Entry] = {}  # written by this process, not yet described
        self._lock = threading.Lock()
        self._sweep_at_s = 0.0
        self.used_bytes = 0  # of all workers' files, as the last sweep saw it, and of this one's since then

    def new_file(self, what: str, size_bytes: int) -> str:
        """A name for the engine to write to; a full disk loses saved caches of less value first.

        Raises StoreError when the folder or the disk has no room for it.
        """
        if not self.fits(size_bytes):
            raise StoreError("limit", f"{size_bytes} bytes are more than store_limit_bytes ({self._limit_bytes})")
        if self._free_bytes() < size_bytes + SPARE_BYTES:
            self.sweep(size_bytes)
            if (free := self._free_bytes()) < size_bytes + SPARE_BYTES:
                raise StoreError("disk", f"{self._folder}: {too_little_room(free)}")
        return f"{self._space}.{what}.{secrets.token_hex(4)}.kv"

    def fits(self, size_bytes: float) -> bool:
        """Whether the store may hold a file of this size at all."""
        return size_bytes <= self._limit_bytes

    def _free_bytes(self) -> int:
        with _told(self._folder):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return shutil.disk_usage(self._folder).free

    def written(self, entry: Entry) -> None:
        """The engine has written it: it is found here now, after `describe` by all. Raises StoreError if it is cut."""
        self.check(entry)
        if not entry.tokens:
            raise StoreError("empty", f"{entry.file}: the slot held nothing")
        with self._lock:
            self._fresh[entry.what] = entry

    def describe(self, entry: Entry) -> None:
        """Read the file once for its checksum, then make it the one of its name. Raises StoreError.

        A slow reading of a large file, so not on a request's path. One that cannot be described goes, and so does one
        that was discarded meanwhile, or that a later one has replaced, here or by a quicker worker.
        """
        with self._lock:
            superseded = self._fresh.get(entry.what) != entry
        if superseded:
            self.remove(entry.file)
            return
        try:
            self.check(entry)
            described = replace(entry, checksum=self._checksum(entry.file))
            old = self._read(entry.what)
            if old is not None and entry.written_s < old.written_s < self.wall() + SKEW_S:
                self.discard(entry)
                return
            self._write(described)
        except StoreError:
            self.discard(entry)
            raise
        self.used_bytes += entry.size_bytes - (old.size_bytes if old is not None else 0)
        self._forget(entry)
        if old is not None and old.file != entry.file:
            self.remove(old.file)

    def find(self, what: str) -> Entry | None:
        """The saved cache of this name, if there is one."""
        return self._fresh.get(what) or self._read(what)

    def check(self, entry: Entry) -> None:
        """Raises StoreError when the file is not what was written. One that this process wrote a moment ago and has
        not read for its checksum yet is checked by its size."""
        try:
            size_bytes = (self._folder / entry.file).stat().st_size
        except OSError as error:
            raise StoreError("missing", f"{entry.file}: {error.strerror}") from None
        if size_bytes != entry.size_bytes:
            raise StoreError("size", f"{entry.file}: {size_bytes} bytes of {entry.size_bytes}")
        if entry.checksum and self._checksum(entry.file) != entry.checksum:
            raise StoreError("checksum", f"{entry.file}: its content has changed since it was written")

    def used(self, entry: Entry) -> None:
        """Count a restore: what is used is kept. Nothing is lost when that fails."""
        current = self._read(entry.what)
        if current is not None and current.file == entry.file:  # it may have been replaced while it was restored
            self._write(replace(current, uses=current.uses + 1))

    def discard(self, entry: Entry) -> None:
        """A file that cannot be used goes, with its description."""
        self._forget(entry)
        current = self._read(entry.what)
        if current is not None and current.file == entry.file:
            self.remove(self._description(entry.what).name)
        self.remove(entry.file)

    def sweep_if_due(self) -> None:
        """`sweep` when the folder may have outgrown its bounds, else now and then: it reads every description."""
        if self.used_bytes > self._limit_bytes or time.monotonic() >= self._sweep_at_s:
            self.sweep()

    def sweep(self, room_bytes: int = 0) -> None:
        """Keep the folder in its bounds, with `room_bytes` free on the disk, whosever files go. Raises StoreError."""
        self._sweep_at_s = time.monotonic() + SWEEP_S
        with self._only_one("sweep.lock") as mine:
            if mine:
                with _told(self._folder):
                    self._sweep(room_bytes)

    @contextmanager
    def making(self, what: str, limit_s: float, stopped: threading.Event) -> Iterator[bool]:
        """One at a time makes a file that all workers want; the others wait for it, `limit_s` at most.

        True: it is this one's to make. False: `stopped` was set, or it took too long. Raises StoreError.
        """
        ends_s = time.monotonic() + limit_s
        while True:
            with self._only_one(f"{self._space}.{what}.lock") as mine:
                if mine or stopped.is_set() or time.monotonic() > ends_s:
                    yield mine
                    return
            stopped.wait(POLL_S)

    def is_fresh(self, what: str) -> bool:
        """Whether a file of this process waits for its description."""
        return what in self._fresh

    def is_promised(self, what: str) -> bool:
        """Whether somebody may be making it; who really is, `making` tells."""
        return (self._folder / f"{self._space}.{what}.lock").exists()

    @contextmanager
    def _only_one(self, name: str) -> Iterator[bool]:
        with _told(self._folder):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = (self._folder / name).open("w")
        with file:
            mine = False
            with _told(self._folder), suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                mine = True
            yield mine  # closing the file gives the lock back

    def _sweep(self, room_bytes: int) -> None:
        stored = [
            Stored(e.file, e.size_bytes, e.tokens, e.return_chance, e.uses, self._unused_s(path))
            for path in self._folder.glob("*.json")
            if (e := _entry(path))  # no more of it is kept: the chain of a long conversation takes 100 kB
        ]
        known = {one.name for one in stored} | {entry.file for entry in list(self._fresh.values())}
        total = sum(one.size_bytes for one in stored)
        room = total + self._free_bytes() - SPARE_BYTES - room_bytes  # below 0 all of it would be given up in vain
        limit_bytes = self._limit_bytes if room < 0 else min(self._limit_bytes, room)
        removed = dict.fromkeys(to_remove(stored, limit_bytes, self._age_s))
        for file in removed:
            self.remove(f"{file.rsplit('.', 2)[0]}.json")
            self.remove(file)
        for path in self._folder.iterdir():
            ours = UNFINISHED_NAME.fullmatch(path.name) and path.name not in known
            if ours and self._unused_s(path) > UNFINISHED_S:
                self.remove(path.name)
        self.used_bytes = sum(one.size_bytes for one in stored if one.name not in removed)

    def _unused_s(self, path: Path) -> float:
        try:
            return max(0.0, self.wall() - path.stat().st_mtime)  # below 0 where the clock was set back
        except OSError:
            return 0.0

    def _forget(self, entry: Entry) -> None:
        with self._lock:
            if self._fresh.get(entry.what) == entry:
                del self._fresh[entry.what]

    def _description(self, what: str) -> Path:
        return self._folder / f"{self._space}.{what}.json"

    def _read(self, what: str) -> Entry | None:
        return _entry(self._description(what))

    def _write(self, entry: Entry) -> None:
        path = self._description(entry.what)
        unfinished = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
        try:
            unfinished.write_text(json.dumps(asdict(entry)))
            unfinished.replace(path)
        except OSError as error:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise StoreError("folder", f"{path}: {error.strerror}") from None

    def _checksum(self, file: str) -> str:
        try:
            with (self._folder / file).open("rb") as data:
                return hashlib.file_digest(data, xxhash.xxh3_128).hexdigest()
        except OSError as error:
            raise StoreError("missing", f"{file}: {error.strerror}") from None

    def remove(self, name: str) -> None:
        """Remove a file that has no description, or no longer. Raises StoreError."""
        with _told(self._folder / name):
            (self._folder / name).unlink(missing_ok=True)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError("folder", f"{path}: {error.strerror}") from None


def _entry(path: Path) -> Entry | None:
    """None when it is not there, was removed this moment, or does not describe a file of this very name."""
    try:
        entry = _ENTRY.validate_json(path.read_bytes(), strict=True)
    except (OSError, ValueError):
        return None
    name = FILE_NAME.fullmatch(entry.file)
    return entry if name and name[1] == path.stem and path.stem.endswith(f".{entry.what}") else None
