"""Every error of the table as the official SDK's own exception, with what its retry logic reads."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, APIStatusError

from tests.acceptance.conftest import StartCluster, running
from tests.acceptance.wire import BASH, expecting_short_answers, occupied, waiting
from tests.doubles.cluster import Cluster

pytestmark = pytest.mark.acceptance

KEY = "key-of-anna-5fb1"


@pytest.fixture
def sdk(standin: Cluster) -> Iterator[Anthropic]:
    with client_of(standin) as client:
        yield client


def client_of(cluster: Cluster, key: str = "any-key", **options: Any) -> Anthropic:
    return Anthropic(base_url=cluster.url, api_key=key, max_retries=0, **options)


def ask(client: Anthropic, words: str = "say 3 words", **fields: Any) -> Any:
    request: dict[str, Any] = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": words}]}
    return client.messages.create(**(request | fields))


def check(error: APIStatusError, status: int, kind: str, *, retried: bool, words: str) -> None:
    """What every error has in common: status, type, the hint to retry, an id, words, and no trace of code."""
    assert (error.status_code, error.type) == (status, kind)
    assert error.response.headers["x-should-retry"] == ("true" if retried else "false")
    body: Any = error.body
    assert body["type"] == "error"
    assert error.request_id == body["request_id"] == error.response.headers["request-id"]
    assert words in body["error"]["message"]
    assert "Traceback" not in str(body)


def retry_after(error: APIStatusError) -> int:
    return int(error.response.headers["retry-after"])


# --- not to be retried --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokens": 0}, "max_tokens: "),
        ({"extra_body": {"temperature": 3}}, "temperature: "),
        ({"messages": []}, "messages: "),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role: "),
        ({"messages": [{"role": "user", "content": [{"type": "hologram"}]}]}, "messages[0].content[0].type: "),
        ({"tools": [{"name": "A", "input_schema": 7}]}, "tools[0].input_schema: "),
        ({"tools": [BASH], "tool_choice": {"type": "tool", "name": "Missing"}}, "tool_choice.name: "),
        ({"extra_headers": {"X-Priority": "banana"}}, "X-Priority: "),
    ],
)
def test_a_wrong_field_is_a_bad_request_that_names_it(sdk: Anthropic, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(sdk, **fields)
    check(caught.value, 400, "invalid_request_error", retried=False, words=words)


@pytest.mark.parametrize("stream", [True, False])
def test_a_prompt_that_is_too_long_is_told_in_the_words_that_make_a_client_compact(
    sdk: Anthropic, stream: bool
) -> None:
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > \d+ maximum") as caught:
        ask(sdk, "word " * 9000, stream=stream)
    check(caught.value, 400, "invalid_request_error", retried=False, words="prompt is too long: ")


def test_a_wrong_key_is_an_authentication_error(keys_cluster: Cluster) -> None:
    with client_of(keys_cluster, "wrong") as client:
        for attempt in (lambda: ask(client), client.models.list, lambda: client.messages.count_tokens(**COUNTED)):
            with pytest.raises(anthropic.AuthenticationError) as caught:
                attempt()
            check(caught.value, 401, "authentication_error", retried=False, words="not known")


COUNTED: Any = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


@pytest.fixture(scope="module")
def keys_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("keys") / "0", workers=1, settings={"api_keys": f"anna:{KEY}"}) as cluster:
        yield cluster


def test_an_unknown_path_is_not_found(sdk: Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        sdk.get("/v1/nothing", cast_to=object)
    check(caught.value, 404, "not_found_error", retried=False, words="/v1/nothing")


def test_a_body_that_is_too_large_is_refused(sdk: Anthropic) -> None:
    with pytest.raises(anthropic.RequestTooLargeError) as caught:
        ask(sdk, "x" * (33 * 1024 * 1024))
    check(caught.value, 413, "request_too_large", retried=False, words="maximum size")


# --- to be retried ------------------------------------------------------------------------------------------------


def test_a_full_line_is_overload_with_a_wait_the_client_accepts(start_cluster: StartCluster) -> None:
    cluster = start_cluster(workers=1, slots=1, settings={"queue_limit": 1})
    with client_of(cluster) as client, occupied(cluster, 1), waiting(cluster):
        with pytest.raises(anthropic.OverloadedError) as caught:
            ask(client)
        check(caught.value, 529, "overloaded_error", retried=True, words="")
        assert 1 <= retry_after(caught.value) <= 60


def test_no_worker_is_unavailable(start_cluster: StartCluster) -> None:
    cluster = start_cluster(workers=1)
    cluster.stop_worker("w1")
    cluster.wait_worker("w1", "gone")
    with client_of(cluster) as client, pytest.raises(anthropic.ServiceUnavailableError) as caught:
        ask(client)
    check(caught.value, 503, "api_error", retried=True, words="worker")
    assert 1 <= retry_after(caught.value) <= 60


def test_a_model_that_loads_is_unavailable(start_cluster: StartCluster) -> None:
    cluster = start_cluster(workers=1)
    cluster.start_worker("w2", load_s=30)
    cluster.wait_worker("w2", "loading")
    cluster.stop_worker("w1")
    cluster.wait_worker("w1", "gone")
    with client_of(cluster) as client, pytest.raises(anthropic.ServiceUnavailableError) as caught:
        ask(client)
    check(caught.value, 503, "api_error", retried=True, words="load")
    assert retry_after(caught.value) >= 1


def test_a_wait_that_is_too_long_is_unavailable(start_cluster: StartCluster) -> None:
    cluster = expecting_short_answers(start_cluster(workers=1, slots=1, settings={"wait_anonymous_s": 0.2}))
    with client_of(cluster) as client, occupied(cluster, 1):
        with pytest.raises(anthropic.ServiceUnavailableError) as caught:
            ask(client)
        check(caught.value, 503, "api_error", retried=True, words="no slot came free")


@pytest.mark.parametrize(
    ("instruction", "error", "status", "retried"),
    [
        ("fail 500", anthropic.InternalServerError, 500, False),
        ("fail 400", anthropic.InternalServerError, 500, False),
        ("drop after 0 tokens", anthropic.InternalServerError, 502, True),
    ],
)
def test_trouble_of_the_engine_is_a_server_error(
    sdk: Anthropic, instruction: str, error: type[APIStatusError], status: int, retried: bool
) -> None:
    with pytest.raises(error) as caught:
        ask(sdk, instruction)
    check(caught.value, status, "api_error", retried=retried, words="engine")


def test_an_engine_that_says_nothing_is_a_gateway_timeout(start_cluster: StartCluster) -> None:
    cluster = start_cluster(workers=1, settings={"first_token_timeout_s": 0.5})
    with client_of(cluster) as client, pytest.raises(anthropic.GatewayTimeoutError) as caught:
        ask(client, "hang")
    check(caught.value, 504, "api_error", retried=True, words="engine")


@pytest.mark.parametrize("instruction", ["fail after 3 tokens", "drop after 3 tokens"])
def test_trouble_in_mid_stream_is_an_error_event(sdk: Anthropic, instruction: str) -> None:
    heard: list[str] = []
    events = ask(sdk, instruction, stream=True)
    with pytest.raises(APIStatusError) as caught:
        heard.extend(event.type for event in events)
    assert heard[0] == "message_start"
    assert "message_stop" not in heard
    body: Any = caught.value.body
    assert body["error"]["type"] == "api_error"
    assert body["request_id"].startswith("req_")
