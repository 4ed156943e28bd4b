"""Cards and engines as the vendors' tools name them."""

import sys
from pathlib import Path

import pytest

from infra import machine
from infra.cli import engine
from infra.cli.engine import Engine
from infra.config import Settings
from infra.errors import StartError

pytestmark = pytest.mark.unit

NVIDIA = """\
GPU 0: NVIDIA GeForce RTX 4090 (UUID: GPU-1b2c)
GPU 1: NVIDIA H200 (UUID: GPU-3d4e)
  MIG 1g.18gb     Device  0: (UUID: MIG-5f6a)
"""
AMD = """\
============================ ROCm System Management Interface ============================
GPU[0]		: Device Name: 		Radeon RX 7900 XTX
GPU[0]		: Device ID: 		0x744c
GPU[1]		: Device Name: 		Radeon RX 7900 XT
"""
DEVICES = """\
load_backend: loaded CUDA backend
Available devices:
  CUDA0: NVIDIA H200 (143771 MiB, 143000 MiB free)
"""


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What each tool prints; a tool not in it is not installed."""
    printed: dict[str, str] = {}
    monkeypatch.setattr(machine, "output_of", lambda tool, *_arguments, **_options: printed.get(tool, ""))
    for variable in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    return printed


def test_cards_are_counted_by_the_tool_of_their_vendor(tools: dict[str, str]) -> None:
    assert machine.cards() == ()
    tools["rocm-smi"] = AMD
    assert (machine.cards(), machine.card_names()[0]) == (("0", "1"), "Radeon RX 7900 XTX")
    tools["nvidia-smi"] = NVIDIA
    assert (machine.cards(), machine.card_names()[1]) == (("0", "1"), "NVIDIA H200")


@pytest.mark.parametrize(("visible", "cards"), [("2,3", ("2", "3")), ("", ()), ("GPU-1b2c", ())])
def test_the_users_own_choice_of_cards_counts(
    visible: str, cards: tuple[str, ...], tools: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tools["nvidia-smi"] = NVIDIA
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.cards() == cards


def test_an_engine_says_what_it_can_use(tools: dict[str, str]) -> None:
    tools["llama-server"] = DEVICES
    assert Engine("llama-server").devices() == ("CUDA0: NVIDIA H200 (143771 MiB, 143000 MiB free)",)
    tools["llama-server"] = "Available devices:\n"
    assert Engine("llama-server").devices() == ()


def test_the_setting_comes_before_the_path_and_the_path_before_the_embedded_one(
    tools: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert engine.find(Settings()).embedded
    (tmp_path / "llama-server").write_text("")
    (tmp_path / "llama-server").chmod(0o755)
    assert engine.find(Settings()).path == str(tmp_path / "llama-server")
    assert engine.find(Settings(llama_server="embedded")).embedded
    assert engine.find(Settings(llama_server=sys.executable)).path == sys.executable
    with pytest.raises(StartError, match="CORRAL_LLAMA_SERVER=/none: not a program that can be run"):
        engine.find(Settings(llama_server="/none"))


def test_a_card_the_engine_cannot_use_is_said_with_the_remedy(tools: dict[str, str]) -> None:
    assert engine.idle_card(Settings(), Engine("embedded")) == ""
    tools["nvidia-smi"] = NVIDIA
    warning = engine.idle_card(Settings(), Engine("embedded"))
    assert "NVIDIA H200" in warning
    assert "-DGGML_CUDA=ON" in warning
    tools["/bin/llama-server"] = "Available devices:\n"
    assert "/bin/llama-server is built without GPU support" in engine.idle_card(Settings(), Engine("/bin/llama-server"))
    tools["/bin/llama-server"] = DEVICES
    assert engine.idle_card(Settings(), Engine("/bin/llama-server")) == ""
    assert engine.idle_card(Settings(gpu="none"), Engine("embedded")) == ""


@pytest.mark.parametrize(
    ("there", "wanted", "words"),
    [((), "7", "no GPU"), (("0", "1"), "1,2", "only GPU 0, 1"), (("0",), "0", ""), ((), "", ""), ((), "none", "")],
)
def test_a_card_that_is_not_there_is_said(
    there: tuple[str, ...], wanted: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "cards", lambda: there)
    said = engine.missing_cards(Settings(gpu=wanted))
    assert words in said
    assert bool(said) is bool(words)
