"""What can be told of a model file before an engine is started on it."""

import os
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra import gguf_file
from infra.errors import StartError
from infra.gguf_file import check, file_hash, parts, read_header

pytestmark = pytest.mark.unit


def written(path: Path, kind: str = "model", weights: bool = True) -> Path:
    """A small file by the format's own writer, with every kind of metadata."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type(kind)
    writer.add_array("tokens", ["a", "bc", ""])
    writer.add_array("scores", [0.5, 1.5])
    writer.add_bool("flag", True)
    writer.add_uint64("large", 2**40)
    writer.add_custom_alignment(64)
    if weights:
        writer.add_tensor("first", np.ones((3, 5), dtype=np.float32))
        writer.add_tensor("last", np.ones((2, 64), dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_whole_file_passes_and_its_least_size_is_that_of_its_weights(tmp_path: Path) -> None:
    path = written(tmp_path / "a.gguf")
    check(path)
    header = read_header(path)
    assert (header.kind, header.tensors) == ("model", 2)
    assert header.least_bytes <= path.stat().st_size < header.least_bytes + 64


def test_the_sizes_of_blocks_are_those_of_the_format() -> None:
    known = {int(kind): sizes for kind, sizes in gguf.constants.GGML_QUANT_SIZES.items()}
    assert gguf_file.BLOCKS.items() <= known.items()


@settings(max_examples=60, deadline=None)
@given(share=st.floats(min_value=0, max_value=0.99))
def test_a_file_cut_off_anywhere_is_refused(tmp_path_factory: pytest.TempPathFactory, share: float) -> None:
    path = written(tmp_path_factory.mktemp("cut") / "a.gguf")
    os.truncate(path, int(share * read_header(path).least_bytes))
    with pytest.raises(StartError, match=r"^model: .*(cut off|not a GGUF file)"):
        check(path)


@settings(max_examples=100, deadline=None)
@given(noise=st.binary(max_size=200))
def test_noise_behind_the_magic_is_refused_and_never_crashes(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes
) -> None:
    path = tmp_path_factory.mktemp("noise") / "a.gguf"
    path.write_bytes(b"GGUF" + noise)
    with pytest.raises(StartError, match=r"^model: "):
        check(path)


def test_what_is_no_model_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("hello")
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "old.gguf").write_bytes(b"GGUF" + (1).to_bytes(4, "little") + bytes(16))
    for name, message in {
        "text.gguf": "is not a GGUF file",
        "empty.gguf": "is not a GGUF file",
        "old.gguf": "is of GGUF version 1",
        "none.gguf": "no such file",
        ".": "is not a file",
    }.items():
        with pytest.raises(StartError, match=message):
            check(tmp_path / name)


@pytest.mark.parametrize("kind", ["adapter", "mmproj"])
def test_a_file_that_only_adds_to_a_model_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(StartError, match=f"is of the kind {kind}"):
        check(written(tmp_path / "a.gguf", kind))


def test_a_vocabulary_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="holds no weights"):
        check(written(tmp_path / "a.gguf", weights=False))


def test_a_split_model_needs_all_its_parts(tmp_path: Path) -> None:
    first = written(tmp_path / "m-00001-of-00002.gguf")
    with pytest.raises(StartError, match=r"m-00002-of-00002.gguf: no such file"):
        check(first)
    second = written(tmp_path / "m-00002-of-00002.gguf")
    check(first)
    assert parts(first) == [first, second]
    with pytest.raises(StartError, match=r"give the first one, m-00001-of-00002.gguf"):
        parts(second)


def test_the_hash_tells_files_apart_and_is_steady(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(bytes(200_000))
    empty = file_hash(path)
    assert len(empty) == 12
    assert file_hash(path) == empty
    path.write_bytes(bytes(200_001))
    longer = file_hash(path)
    path.write_bytes(bytes(100_000) + b"x" + bytes(99_999))
    assert len({empty, longer, file_hash(path)}) == 3


def test_the_hash_covers_the_end_of_a_large_file_and_every_part(tmp_path: Path) -> None:
    first, second = tmp_path / "m-00001-of-00002.gguf", tmp_path / "m-00002-of-00002.gguf"
    for path in (first, second):
        with path.open("wb") as file:
            file.truncate(20 * 2**20)
    before = file_hash(first)
    with second.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"x")
    assert file_hash(first) != before
