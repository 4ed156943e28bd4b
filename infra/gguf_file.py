"""What can be told about a GGUF file before an engine is started on it.

Owns: the check that it is a model and whole, its parts when it is split, its metadata, and the hash that stands for
its version.
Never: reads weights as weights, judges whether an engine knows the architecture.
"""

import hashlib
import mmap
import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from infra.errors import StartError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
SPLIT = re.compile(r"^(?P<stem>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf$")
SAMPLES = 64
SAMPLE_BYTES = 64 * 1024

# From here on: the format as its specification has it (ggml, docs/gguf.md). Codes of metadata values, with their size.
STRING, ARRAY = 8, 9
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
# Arrays of numbers up to this length are kept: one number a layer, never one a token.
KEPT_NUMBERS = 1024
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


Value = str | int | float | bool | tuple[int | float | bool, ...]


@dataclass(frozen=True, slots=True)
class Header:
    """`general.type` (empty when not given), number of tensors, and the size that the file must have at least.

    `values` are the metadata by key, without long arrays and arrays of strings; `lengths` those of every array.
    """

    kind: str
    tensors: int
    least_bytes: int
    values: Mapping[str, Value] = field(default_factory=dict)
    lengths: Mapping[str, int] = field(default_factory=dict)


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
        self._values: dict[str, Value] = {}
        self._lengths: dict[str, int] = {}

    def header(self) -> Header:
        version = self._number("<I")
        if version not in VERSIONS:
            raise _UnknownVersionError(version)
        tensors, pairs = self._number("<Q"), self._number("<Q")
        for _ in range(pairs):
            self._pair()
        kind, alignment = self._values.get("general.type", ""), self._values.get("general.alignment")
        step = max(1, alignment) if isinstance(alignment, int) else DEFAULT_ALIGNMENT
        extent = max((self._tensor_end() for _ in range(tensors)), default=0)
        data = -(-self._at // step) * step
        least_bytes = data + extent if tensors else self._at
        return Header(kind if isinstance(kind, str) else "", tensors, least_bytes, self._values, self._lengths)

    def _pair(self) -> None:
        key, code = self._string().decode(), self._number("<I")
        if code == STRING:
            self._values[key] = self._string().decode(errors="replace")
        elif code == ARRAY:
            self._array(key)
        else:
            self._values[key] = self._scalar(code)

    def _array(self, key: str) -> None:
        inner, count = self._number("<I"), self._number("<Q")
        self._lengths[key] = count
        if inner in SCALARS and count <= KEPT_NUMBERS:
            self._values[key] = tuple(self._scalar(inner) for _ in range(count))
        else:
            self._skip(inner, count)

    def _tensor_end(self) -> int:
        self._string()
        values = 1
        for _ in range(self._number("<I")):
            values *= self._number("<Q")
        block, size = BLOCKS.get(self._number("<I"), (1, 0))
        return self._number("<Q") + values // block * size

    def _skip(self, code: int, count: int) -> None:
        """Pass by `count` values of an array."""
        if code in SCALARS:
            self._at += struct.calcsize(SCALARS[code]) * count
        elif code == STRING:
            for _ in range(count):
                self._string()
        elif code == ARRAY:
            for _ in range(count):
                self._skip(self._number("<I"), self._number("<Q"))
        else:
            raise struct.error("unknown kind of value")

    def _scalar(self, code: int) -> int | float | bool:
        if code not in SCALARS:
            raise struct.error("unknown kind of value")
        return self._value(SCALARS[code])

    def _string(self) -> bytes:
        length = self._number("<Q")
        end = self._at + length
        if end > len(self._view):
            raise IndexError
        text = self._view[self._at : end]
        self._at = end
        return text

    def _number(self, form: str) -> int:
        return int(self._value(form))

    def _value(self, form: str) -> int | float | bool:
        value: int | float | bool
        (value,) = struct.unpack_from(form, self._view, self._at)
        self._at += struct.calcsize(form)
        return value
