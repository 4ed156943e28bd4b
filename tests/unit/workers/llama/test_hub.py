"""Which files of a repository are meant, and their download from a small double of the hub."""

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from huggingface_hub import constants

from infra.errors import StartError
from infra.model_setting import HfModel
from workers.llama import hub
from workers.llama.hub import choose, fetch

pytestmark = pytest.mark.unit

NAMES = [
    "README.md",
    "Qwen3-8B-BF16.gguf",
    "Qwen3-8B-Q4_K_M.gguf",
    "Qwen3-8B-UD-Q4_K_XL.gguf",
    "Qwen3-8B-Q8_0.gguf",
    "mmproj-BF16.gguf",
    "imatrix-Q4_K_M.gguf",
    "Q6_K/Qwen3-8B-Q6_K-00002-of-00002.gguf",
    "Q6_K/Qwen3-8B-Q6_K-00001-of-00002.gguf",
    "Q2_K/Qwen3-8B-Q2_K-00001-of-00002.gguf",
]


@pytest.mark.parametrize(
    ("quant", "files"),
    [
        ("", ["Qwen3-8B-Q4_K_M.gguf"]),
        ("q8_0", ["Qwen3-8B-Q8_0.gguf"]),
        ("BF16", ["Qwen3-8B-BF16.gguf"]),
        ("Q4_K_XL", ["Qwen3-8B-UD-Q4_K_XL.gguf"]),
        ("UD-Q4_K_XL", ["Qwen3-8B-UD-Q4_K_XL.gguf"]),
        ("Q6_K", ["Q6_K/Qwen3-8B-Q6_K-00001-of-00002.gguf", "Q6_K/Qwen3-8B-Q6_K-00002-of-00002.gguf"]),
    ],
)
def test_the_files_of_the_quantisation_are_chosen_in_order(quant: str, files: list[str]) -> None:
    assert choose(NAMES, HfModel("a/b", quant)) == files


def test_a_quantisation_that_is_not_there_is_said_with_those_that_are() -> None:
    with pytest.raises(StartError, match=r"a/b has no Q4; it has BF16, Q2_K, Q4_K_M, Q6_K, Q8_0, UD-Q4_K_XL"):
        choose(NAMES, HfModel("a/b", "Q4"))


def test_a_missing_part_is_said() -> None:
    with pytest.raises(StartError, match=r"lacks Q2_K/Qwen3-8B-Q2_K-00002-of-00002.gguf, one of 2 parts"):
        choose(NAMES, HfModel("a/b", "Q2_K"))


def test_a_repository_without_a_model_is_said() -> None:
    with pytest.raises(StartError, match="a/b holds no GGUF file"):
        choose(["model.safetensors", "mmproj-F16.gguf"], HfModel("a/b", ""))


def test_the_only_model_is_taken_whatever_its_name() -> None:
    assert choose(["model.gguf"], HfModel("a/b", "")) == ["model.gguf"]


def test_without_the_library_the_engine_is_to_fetch_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "find_spec", lambda _: None)
    assert fetch(HfModel("a/b", "Q8_0"), tmp_path) == HfModel("a/b", "Q8_0")


class Hub(http.server.BaseHTTPRequestHandler):
    """One repository, a/b, as the hub's own routes show it."""

    files: ClassVar = {"m-Q8_0-00001-of-00002.gguf": b"GGUF-first", "m-Q8_0-00002-of-00002.gguf": b"GGUF-second"}

    def do_GET(self) -> None:
        if self.path.startswith("/api/models/a/b/tree/main"):
            tree = [{"type": "file", "path": name, "size": 9, "oid": "0"} for name in self.files]
            self._answer(200, json.dumps(tree).encode())
        elif (name := self.path.rpartition("/")[2]) in self.files:
            self._answer(200, self.files[name])
        else:
            self._answer(404, b"{}")

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    template = f"http://127.0.0.1:{server.server_port}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    yield
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.usefixtures("double")
def test_all_parts_are_downloaded_and_the_first_is_given_to_the_engine(tmp_path: Path) -> None:
    first = fetch(HfModel("a/b", "Q8_0"), tmp_path)
    assert first == tmp_path / "a--b" / "m-Q8_0-00001-of-00002.gguf"
    assert isinstance(first, Path)
    assert first.read_bytes() == b"GGUF-first"
    assert first.with_name("m-Q8_0-00002-of-00002.gguf").read_bytes() == b"GGUF-second"


@pytest.mark.usefixtures("double")
def test_a_repository_that_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"^model: a/c:Q8_0 cannot be downloaded: [^\n]+$"):
        fetch(HfModel("a/c", "Q8_0"), tmp_path)


def test_what_was_downloaded_before_is_served_when_the_hub_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(_: HfModel, _question: object) -> None:
        raise StartError("model", "no network")

    monkeypatch.setattr(hub, "_ask", unreachable)
    with pytest.raises(StartError, match="no network"):
        fetch(HfModel("a/b", "Q8_0"), tmp_path)
    (tmp_path / "a--b").mkdir()
    (tmp_path / "a--b" / "m-Q8_0.gguf").touch()
    assert fetch(HfModel("a/b", "Q8_0"), tmp_path) == tmp_path / "a--b" / "m-Q8_0.gguf"
