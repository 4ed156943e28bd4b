"""The configuration and address of the house's own broker."""

from pathlib import Path

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from redis import ConnectionPool

from infra.cli import broker
from infra.errors import StartError

pytestmark = pytest.mark.unit


@given(password=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40))
def test_the_address_carries_any_password(password: str) -> None:
    parts = ConnectionPool.from_url(broker.url("127.0.0.1", 6379, password)).connection_kwargs
    assert (parts["host"], parts["port"], parts["db"]) == ("127.0.0.1", 6379, 0)
    assert parts.get("password", "") == password


def test_an_ipv6_address_is_bracketed() -> None:
    assert broker.url("::1", 6379, "") == "redis://[::1]:6379/0"


def test_the_password_is_in_a_file_of_its_owner_and_not_in_the_arguments(tmp_path: Path) -> None:
    command = broker.command(tmp_path / "broker", "127.0.0.1", 6379, "sec ret")
    assert not any("sec ret" in word for word in command)
    file = Path(command[-1])
    assert 'requirepass "sec ret"' in file.read_text()
    assert file.stat().st_mode & 0o077 == 0


def test_nothing_is_evicted_and_little_is_lost(tmp_path: Path) -> None:
    lines = broker.configuration(tmp_path, "127.0.0.1", 6379, "").splitlines()
    assert {"appendonly yes", "appendfsync everysec", "maxmemory-policy noeviction", "bind 127.0.0.1"} <= set(lines)
    assert not any(line.startswith("requirepass") for line in lines)


def test_a_folder_with_quotes_and_line_breaks_stays_one_line() -> None:
    lines = broker.configuration(Path('/a "b"\n\\c'), "127.0.0.1", 1, "").splitlines()
    assert r'dir "/a \"b\"\n\\c"' in lines


def test_waiting_ends_when_the_process_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_client: redis.Redis) -> bool:
        raise redis.ConnectionError

    def ended() -> None:
        raise StartError("broker", "ended")

    monkeypatch.setattr(redis.Redis, "ping", refuse)
    with pytest.raises(StartError, match="broker: ended"):
        broker.wait_until_answers("redis://127.0.0.1:1/0", ended, lambda _seconds: None)
