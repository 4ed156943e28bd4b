"""An address that is taken is one that all who are given it can use: both clients, and Celery."""

import pytest

from infra.celery_app import build
from infra.config import Settings
from infra.errors import ConfigError
from infra.redis_client import async_client, checked, sync_client

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "redis://:secret@127.0.0.1:1/3", "rediss://127.0.0.1:1/0"])
def test_what_is_taken_can_be_used_by_everybody(url: str) -> None:
    assert checked(url) == url
    for client in (async_client(url), sync_client(url)):
        assert "host=127.0.0.1" in repr(client.connection_pool.make_connection())
    with build(Settings(redis_url=url)) as app:
        assert app.connection().transport_cls in {"redis", "rediss"}
        assert app.connection().transport is not None


@pytest.mark.parametrize("url", ["", "unix:///run/valkey.sock", "redis+socket:///run/valkey.sock", "127.0.0.1:6379"])
def test_what_somebody_cannot_use_is_refused_by_its_setting_s_name(url: str) -> None:
    for use in (async_client, sync_client, lambda url: build(Settings(redis_url=url))):
        with pytest.raises(ConfigError, match=r"^CORRAL_REDIS_URL: .*redis://"):
            use(url)
