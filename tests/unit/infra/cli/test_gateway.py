"""The API as the command line sees it."""

import pytest

from infra.cli import gateway
from infra.cli.gateway import Gateway
from infra.config import Settings
from infra.errors import CorralError, NotAuthenticated
from tests.unit.infra.cli.conftest import FixedApi

pytestmark = pytest.mark.unit


def test_status_and_models_are_read_with_the_key(fixed_api: FixedApi) -> None:
    with Gateway(fixed_api.url, "secret") as client:
        status = client.status()
        assert (status.waiting, status.workers[0].slots[0].agent) == (9, "reviewer")
        assert client.models() == ("anthropic-m",)
        assert client.ready()
    assert set(fixed_api.keys) == {"secret"}


def test_silence_says_how_to_start_it(fixed_api: FixedApi) -> None:
    fixed_api.stop()
    with Gateway(fixed_api.url, "k") as client:
        assert not client.ready()
        with pytest.raises(CorralError, match="does not answer; start it with `corral up`, or give --url"):
            client.status()


def test_a_refused_key_says_where_keys_come_from(fixed_api: FixedApi) -> None:
    fixed_api.answers["/v1/status"] = (401, {})
    with Gateway(fixed_api.url, "k") as client, pytest.raises(NotAuthenticated, match="give --key"):
        client.status()


def test_an_error_of_the_api_is_passed_on_in_its_own_words(fixed_api: FixedApi) -> None:
    fixed_api.answers["/v1/status"] = (503, {"error": {"message": "the broker does not answer"}})
    with Gateway(fixed_api.url, "k") as client, pytest.raises(CorralError, match="503: the broker does not answer"):
        client.status()


@pytest.mark.parametrize("body", [b"<html>", [], {"workers": [{"nonsense": 1}]}])
def test_a_stranger_at_the_address_is_called_one(fixed_api: FixedApi, body: object) -> None:
    fixed_api.answers["/v1/status"] = (200, body)
    with Gateway(fixed_api.url, "k") as client, pytest.raises(CorralError, match="is not Corral's API"):
        client.status()


def test_a_url_that_is_none_is_no_crash() -> None:
    with Gateway("nonsense", "k") as client, pytest.raises(CorralError, match="nonsense does not answer"):
        client.status()


def test_an_api_on_all_addresses_is_reached_on_loopback() -> None:
    assert gateway.address(Settings(host="0.0.0.0", port=1)) == "http://127.0.0.1:1"
    assert gateway.address(Settings(host="::", port=1)) == "http://[::1]:1"
    assert gateway.address(Settings(host="10.0.0.5", port=1)) == "http://10.0.0.5:1"


def test_the_first_key_is_sent_unless_one_is_given() -> None:
    settings = Settings(api_keys="me:one,you:two")
    assert gateway.key(settings) == "one"
    assert gateway.key(settings, "three") == "three"
    assert gateway.key(Settings()) == "corral"
