"""What can be told about a GGUF file before an engine is started on it.

Owns: the check that it is a model and whole, its parts when it is split, and the hash that stands for its version.
Never: reads weights as weights, judges whether an engine knows the architecture.
"""

import hashlib
import mmap
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from infra.errors import StartError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
SPLIT = re.compile(r"^(?P<stem>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf$")
SAMPLES = 64
SAMPLE_BYTES = 64 * 1024

# From here on: the format as its specification has it (ggml, docs/gguf.md). Codes of metadata values, with their size.
STRING, ARRAY, UINT32 = 8, 9, 4
SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
# Code of a tensor's type: values in a block, bytes of a block. An unknown type is left to the engine to judge.
BLOCKS = {
    code: (values, size)
    for values, sizes in {
        1: {0: 4, 1: 2, 24: 1, 25: 2, 26: 4, 27: 8, 28: 8, 30: 2},
        32: {2: 18, 3: 20, 6: 22, 7: 24, 8: 34, 20: 18, 39: 17},
        64: {40: 36},
        256: {10: 84, 11: 110, 12: 144, 13: 176, 14: 210, 15: 292, 16: 66, 17: 74, 18: 98, 19: 50, 21: 110, 22: 82}
        | {23: 136, 29: 56, 34: 54, 35: 66},
    }.items()
    for code, size in sizes.items()
}


@dataclass(frozen=True, slots=True)
class Header:
    """`general.type` (empty when not given), number of tensors, and the size that the file must have at least."""

    kind: str
    tensors: int
    least_bytes: int


def check(path: Path) -> None:
    """Raises StartError that says why `path`, or a further part of it, cannot be a model."""
    for part in parts(path):
        _check_one(part)


def parts(path: Path) -> list[Path]:
    """The file, or all files of a split model; the first part is the one that an engine is given."""
    match = SPLIT.match(path.name)
    if match is None:
        return [path]
    if int(match["part"]) != 1:
        first = f"{match['stem']}-00001-of-{match['parts']}.gguf"
        raise StartError("model", f"{path} is a later part of a split model; give the first one, {first}")
    count = int(match["parts"])
    return [path.with_name(f"{match['stem']}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]


def file_hash(path: Path) -> str:
    """The model's version: 12 hex digits over the size and 64 evenly spread samples of 64 KiB of each part.

    Not over the whole file: 40 GB take a minute to read, at each start of each worker. Another quantisation, another
    training or a changed header differ nearly everywhere; a single flipped bit is not what a version is for.
    """
    digest = hashlib.sha256()
    for part in parts(path):
        size = part.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        with part.open("rb") as file:
            for number in range(SAMPLES):
                file.seek(number * max(0, size - SAMPLE_BYTES) // (SAMPLES - 1))
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()[:12]


def _check_one(path: Path) -> None:
    if not path.exists():
        raise StartError("model", f"{path}: no such file")
    if not path.is_file():
        raise StartError("model", f"{path} is not a file; give the path of a .gguf file")
    try:
        header = read_header(path)
    except OSError as error:
        raise StartError("model", f"{path} cannot be read: {error.strerror}") from None
    size = path.stat().st_size
    if header.least_bytes > size:
        raise StartError("model", f"{path} is cut off: it has {size} of {header.least_bytes} bytes; download it again")
    if header.kind in ("adapter", "mmproj", "imatrix"):
        raise StartError("model", f"{path} is of the kind {header.kind}, not a model of its own")
    if not header.tensors and not SPLIT.match(path.name):
        raise StartError("model", f"{path} holds no weights, only a vocabulary")


def read_header(path: Path) -> Header:
    """Raises StartError when it is no GGUF file or ends inside its header, OSError when it cannot be read."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise StartError("model", f"{path} is not a GGUF file; llama.cpp's models end in .gguf")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            try:
                return _Reader(view).header()
            except (struct.error, IndexError, OverflowError, UnicodeDecodeError):
                size = os.fstat(file.fileno()).st_size
                raise StartError(
                    "model", f"{path} is cut off or damaged: its header does not end within its {size} bytes"
                ) from None
            except _UnknownVersionError as error:
                raise StartError("model", f"{path} is of GGUF version {error}, which is not known here") from None


class _UnknownVersionError(Exception):
    """The number of the version."""


class _Reader:
    """Walks over the header; `struct` raises at the end of the file."""

    def __init__(self, view: mmap.mmap) -> None:
        self._view = view
        self._at = len(MAGIC)

    def header(self) -> Header:
        version = self._number("<I")
        if version not in VERSIONS:
            raise _UnknownVersionError(version)
        tensors, pairs = self._number("<Q"), self._number("<Q")
        kind, alignment = "", DEFAULT_ALIGNMENT
        for _ in range(pairs):
            key, code = self._string(), self._number("<I")
            if key == b"general.type" and code == STRING:
                kind = self._string().decode()
            elif key == b"general.alignment" and code == UINT32:
                alignment = max(1, self._number("<I"))
            else:
                self._skip(code)
        extent = max((self._tensor_end() for _ in range(tensors)), default=0)
        data = -(-self._at // alignment) * alignment
        return Header(kind, tensors, data + extent if tensors else self._at)

    def _tensor_end(self) -> int:
        self._string()
        values = 1
        for _ in range(self._number("<I")):
            values *= self._number("<Q")
        block, size = BLOCKS.get(self._number("<I"), (1, 0))
        return self._number("<Q") + values // block * size

    def _skip(self, code: int) -> None:
        if code == STRING:
            self._string()
        elif code == ARRAY:
            inner, count = self._number("<I"), self._number("<Q")
            if inner in SCALAR_BYTES:
                self._at += SCALAR_BYTES[inner] * count
            else:
                for _ in range(count):
                    self._skip(inner)
        else:
            self._at += SCALAR_BYTES[code] if code in SCALAR_BYTES else self._damaged()

    def _damaged(self) -> int:
        raise struct.error("unknown kind of value")

    def _string(self) -> bytes:
        length = self._number("<Q")
        end = self._at + length
        if end > len(self._view):
            raise IndexError
        text = self._view[self._at : end]
        self._at = end
        return text

    def _number(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self._view, self._at)
        self._at += struct.calcsize(form)
        return int(value)
