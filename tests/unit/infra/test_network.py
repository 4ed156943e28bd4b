"""What counts as this machine alone, everywhere the same, and a port that is free."""

import socket

import pytest

from api.app import create_app
from infra import flower_app
from infra.cli import checks
from infra.config import Settings
from infra.errors import ConfigError, CorralError
from infra.network import free_port, is_loopback

pytestmark = pytest.mark.unit

LOOPBACK = ["127.0.0.1", "127.0.0.2", "127.255.255.254", "localhost", "LocalHost", "::1", "::ffff:127.0.0.1"]
OPEN = ["", "0.0.0.0", "::", "*", "10.0.0.1", "127.example.com", "127.0.0.1.example.com", "128.0.0.1", "::2", "gpu-box"]


@pytest.mark.parametrize("host", LOOPBACK)
def test_only_this_machine_reaches_a_loopback_address(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", OPEN)
def test_any_other_name_or_address_counts_as_open(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize("host", LOOPBACK)
def test_every_part_takes_a_loopback_address_without_a_key(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(host=host, flower_host=host)
    checks.doors(settings)
    create_app(settings)
    with pytest.raises(ConfigError, match="CORRAL_REDIS_URL"):  # the next thing that is missing
        flower_app.run(settings)


@pytest.mark.parametrize("host", OPEN)
def test_every_part_wants_a_key_or_password_on_an_open_address(host: str) -> None:
    with pytest.raises(CorralError, match="CORRAL_API_KEYS"):
        checks.doors(Settings(host=host))
    with pytest.raises(CorralError, match="CORRAL_API_KEYS"):
        create_app(Settings(host=host))
    with pytest.raises(CorralError, match="CORRAL_FLOWER_PASSWORD"):
        flower_app.run(Settings(flower_host=host))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_free_port_can_be_taken(host: str) -> None:
    with socket.create_server((host, free_port(host)), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
        pass
