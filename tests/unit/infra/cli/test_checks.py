"""What must be true before anything is started, and the words when it is not."""

import shutil
import socket
from pathlib import Path
from typing import NamedTuple

import pytest

from infra import gguf_file
from infra.cli import checks, up
from infra.config import Settings
from infra.errors import ConfigError, StartError

pytestmark = pytest.mark.unit


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_a_taken_port_is_named_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        with pytest.raises(StartError, match=f"API: port {number} is taken.*or give another --port"):
            checks.port("127.0.0.1", number, "API", "give another --port")


def test_port_nought_becomes_a_real_one() -> None:
    assert checks.port("127.0.0.1", 0, "API", "") > 0


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(StartError, match=r"cannot listen on 192\.0\.2\.1:8000"):
        checks.port("192.0.2.1", 8000, "API", "give another --port")


def test_the_data_folder_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "data"
    checks.data_dir(folder)
    assert folder.stat().st_mode & 0o077 == 0
    assert list(folder.iterdir()) == []


def test_a_data_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match=r"data folder: .*file: .*give another --data-dir"):
        checks.data_dir(tmp_path / "file")


def test_a_full_disk_is_said_before_it_hurts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: Usage(10, 9, 5 * 2**20))
    with pytest.raises(StartError, match="only 5 MiB of disk are free, 512 MiB are needed"):
        checks.data_dir(tmp_path)


def test_a_store_that_cannot_be_used_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "kv"
    with pytest.raises(StartError, match=f"^store: {folder} cannot be used: Not a directory; .* store_dir"):
        checks.store(Settings(store_dir=str(folder)))


def test_a_store_on_a_disk_whose_last_room_is_others_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: Usage(10, 9, 255 * 2**20))
    with pytest.raises(StartError, match="kv: too little room: 255 MiB free, and 256 MiB of the disk are left to"):
        checks.store(Settings(store_dir=str(tmp_path / "kv")))
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: Usage(10, 9, 256 * 2**20))
    checks.store(Settings(store_dir=str(tmp_path / "kv")))
    checks.store(Settings(store_dir="off"))


def test_up_warns_of_a_store_that_cannot_be_used_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    up._warn_of_store(Settings(store_dir=str(tmp_path / "file")))
    assert capsys.readouterr().err.startswith(f"warning: store: {tmp_path / 'file'} cannot be used: File exists; ")
    up._warn_of_store(Settings(store_dir=str(tmp_path / "kv")))
    assert capsys.readouterr().err == ""


def test_other_machines_are_let_in_only_with_keys() -> None:
    with pytest.raises(ConfigError, match=r"--host 0.0.0.0: .*CORRAL_API_KEYS"):
        checks.doors(Settings(host="0.0.0.0"))
    checks.doors(Settings(host="0.0.0.0", api_keys="me:secret"))
    checks.doors(Settings(host="127.0.0.2"))


def test_flower_is_shown_to_other_machines_only_with_a_password() -> None:
    with pytest.raises(ConfigError, match="CORRAL_FLOWER_PASSWORD"):
        checks.doors(Settings(flower_host="0.0.0.0"))
    checks.doors(Settings(flower_host="0.0.0.0"), flower=False)
    checks.doors(Settings(flower_host="0.0.0.0", flower_password="me:secret"))


def test_a_model_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.gguf").touch()
    monkeypatch.setattr(gguf_file, "check", lambda _path: None)
    monkeypatch.chdir(tmp_path)
    assert checks.model("m.gguf") == str(tmp_path / "m.gguf")


@pytest.mark.parametrize("name", ["hf:owner/repo", "hf:owner/repo:Q4_K_M"])
def test_a_repository_is_left_to_the_worker(name: str) -> None:
    assert checks.model(name) == name


def test_a_model_that_is_none_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"PK\x03\x04")
    with pytest.raises(StartError, match=r"m.gguf is not a GGUF file"):
        checks.model(str(tmp_path / "m.gguf"))
    with pytest.raises(StartError, match=r"missing.gguf: no such file"):
        checks.model(str(tmp_path / "missing.gguf"))
    with pytest.raises(StartError, match="hf:OWNER/REPO"):
        checks.model("hf:nothing")


def test_a_missing_warm_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^warm: .*none\.json: no such file"):
        checks.warm(Settings(warm=(tmp_path / "none.json",)))
