"""Whatever is sent gets a clear error that names the field, at once, and leaves the server whole."""

import gzip
import json
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from http.client import HTTPResponse
from typing import Any

import pytest

from tests.acceptance.conftest import running
from tests.acceptance.wire import BASH, assistant, body, running_jobs, text, user, waiting_jobs
from tests.doubles.cluster import Cluster
from tests.doubles.services import wait_for

pytestmark = pytest.mark.acceptance

GOOD = json.dumps(body(user("say 3 words"))).encode()
BODY_LIMIT = 32 * 1024 * 1024
LONGEST_S = 10  # nothing here may take longer; the settings allow one second


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A server with little patience; after all tests it must still serve, with nothing left of them."""
    folder = tmp_path_factory.mktemp("bad-input") / "0"
    with running(folder, workers=1, slots=2, settings={"body_timeout_s": 1}) as cluster:
        yield cluster
        assert cluster.messages("say 3 words").status_code == 200
        wait_for(lambda: running_jobs(cluster) + waiting_jobs(cluster) == 0, "everything to be given back")
        assert "Traceback" not in cluster.api_log()


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def message(self) -> str:
        return str(self.body["error"]["message"])


def send(cluster: Cluster, parts: Iterable[bytes]) -> Answer:
    """Send raw bytes on a connection of their own and read the answer."""
    with socket.create_connection(("127.0.0.1", cluster.ports[0]), timeout=LONGEST_S) as connection:
        try:
            for part in parts:
                connection.sendall(part)
        except ConnectionError:
            pass  # the server may answer and close before it has heard everything
        response = HTTPResponse(connection)
        response.begin()
        return Answer(response.status, {n.lower(): v for n, v in response.getheaders()}, json.loads(response.read()))


def head(*headers: str, method: str = "POST", path: str = "/v1/messages", version: str = "HTTP/1.1") -> bytes:
    return "\r\n".join([f"{method} {path} {version}", "Host: localhost", *headers, "", ""]).encode()


def request(data: bytes, *headers: str, **line: str) -> bytes:
    return head(f"Content-Length: {len(data)}", *headers, **line) + data


def check(answer: Answer, status: int, kind: str, words: str) -> None:
    """An error in the one shape, with these words, and nothing of our code in it."""
    assert answer.status == status, answer
    assert (answer.body["type"], answer.body["error"]["type"]) == ("error", kind)
    assert words in answer.message
    assert answer.body["request_id"] == answer.headers["request-id"]
    assert answer.headers["x-should-retry"] == "false"
    assert 'File "' not in answer.message


def bad(cluster: Cluster, fields: dict[str, Any], words: str) -> None:
    data = json.dumps(body(user("say 3 words")) | fields).encode()
    check(send(cluster, [request(data)]), 400, "invalid_request_error", words)


# --- fields -------------------------------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"messages": "x"}, "messages: must be a list"),
    ({"messages": None}, "messages: must be a list"),
    ({"messages": []}, "messages: must hold 1 to"),
    ({"messages": [user("x")] * 100_001}, "messages: must hold 1 to"),
    ({"messages": [7]}, "messages[0]: must be a JSON object"),
    ({"messages": [user("x"), {"role": "robot", "content": "x"}]}, "messages[1].role: must be"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role: must be"),
    ({"messages": [{"role": "user"}]}, "messages[0].content: is required"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content: must be a string or a list of blocks"),
    ({"messages": [user(5)]}, "messages[0].content[0]: must be a JSON object"),
    ({"messages": [user({"type": "hologram"})]}, "messages[0].content[0].type: unknown type 'hologram'"),
    ({"messages": [user({"type": "text"})]}, "messages[0].content[0].text: is required"),
    ({"messages": [user({"type": "tool_result"})]}, "messages[0].content[0].tool_use_id: is required"),
    ({"messages": [user({"type": "tool_use", "id": "a", "name": "b"})]}, "messages[0].content[0].type: `tool_use`"),
    ({"messages": [user({"type": "image", "source": {"type": "disk"}})]}, "messages[0].content[0].source.type: "),
    ({"max_tokens": 0}, "max_tokens: must be greater than"),
    ({"max_tokens": -1}, "max_tokens: must be greater than"),
    ({"max_tokens": -(2**70)}, "max_tokens: must be "),
    ({"max_tokens": 1.5}, "max_tokens: must be a whole number"),
    ({"max_tokens": "many"}, "max_tokens: must be a whole number"),
    ({"max_tokens": True}, "max_tokens: must be a whole number"),
    ({"temperature": -1}, "temperature: must be"),
    ({"temperature": "hot"}, "temperature: must be"),
    ({"top_p": 2}, "top_p: must be"),
    ({"top_k": -1}, "top_k: must be"),
    ({"stop_sequences": "x"}, "stop_sequences: must be a list"),
    ({"stop_sequences": [1]}, "stop_sequences[0]: must be a string"),
    ({"stream": "yes"}, "stream: must be true or false"),
    ({"system": 5}, "system: must be a string or a list of blocks"),
    ({"system": [text("x"), {"type": "image"}]}, "system[1].type: must be 'text'"),
    ({"thinking": "on"}, "thinking: must be a JSON object"),
    ({"thinking": {"type": "maybe"}}, "thinking.type: must be"),
    ({"tools": "x"}, "tools: must be a list"),
    ({"tools": [{"input_schema": {}}]}, "tools[0].name: is required"),
    ({"tools": [BASH, BASH]}, "tools[1].name: is used by an earlier tool"),
    ({"tools": [{"name": "A", "input_schema": "x"}]}, "tools[0].input_schema: must be a JSON object"),
    ({"tools": [BASH], "tool_choice": "auto"}, "tool_choice: must be a JSON object"),
    ({"tools": [BASH], "tool_choice": {"type": "tool"}}, "tool_choice.name: is required"),
    ({"tools": [BASH], "tool_choice": {"type": "tool", "name": "X"}}, "tool_choice.name: names no tool"),
    ({"model": 5}, "model: must be a string"),
]


@pytest.mark.parametrize(("fields", "words"), WRONG, ids=[str(words) for _, words in WRONG])
def test_a_wrong_field_is_named(cluster: Cluster, fields: dict[str, Any], words: str) -> None:
    bad(cluster, fields, words)


def test_an_error_gives_back_little_of_what_was_sent(cluster: Cluster) -> None:
    data = json.dumps(body(user({"type": "x" * 100_000}))).encode()
    assert len(send(cluster, [request(data)]).message) < 1000


@pytest.mark.parametrize("count", [2**31, 2**63, 2**70, 10**300])
def test_a_huge_max_tokens_is_clamped(cluster: Cluster, count: int) -> None:
    assert cluster.messages("say 3 words", max_tokens=count).status_code == 200


def test_ten_thousand_messages_are_served_or_too_long(cluster: Cluster) -> None:
    messages = [user("a") if number % 2 == 0 else assistant("b") for number in range(10_000)]
    bad(cluster, {"messages": messages}, "prompt is too long: ")


def test_three_hundred_tools_are_served(cluster: Cluster) -> None:
    tools = [{**BASH, "name": f"Tool{number}"} for number in range(300)]
    assert cluster.messages("say 3 words", tools=tools).status_code == 200


# --- bodies -------------------------------------------------------------------------------------------------------

NO_JSON: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "body: not valid JSON"),
    "cut off": (GOOD[:-5], "body: not valid JSON"),
    "an array": (b"[1, 2]", "body: must be a JSON object"),
    "a number": (b"7", "body: must be a JSON object"),
    "text": (b"hello", "body: not valid JSON"),
    "not UTF-8": (b'{"messages": "\xff\xfe"}', "body: not valid JSON"),
    "UTF-16": (GOOD.decode().encode("utf-16"), "body: not valid JSON"),
    "NaN": (b'{"temperature": NaN, "messages": []}', "body: not valid JSON"),
    "very deep": (b"[" * 1_000_000, "body: not valid JSON"),
    "deep": (b'{"metadata": ' + b"[" * 300 + b"]" * 300 + b"}", "body: nested deeper than 200 levels"),
}


@pytest.mark.parametrize(("data", "words"), NO_JSON.values(), ids=NO_JSON.keys())
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_a_body_that_is_no_json_object_is_refused(cluster: Cluster, path: str, data: bytes, words: str) -> None:
    check(send(cluster, [request(data, path=path)]), 400, "invalid_request_error", words)


def test_a_declared_size_over_the_limit_is_refused_before_the_body_comes(cluster: Cluster) -> None:
    answer = send(cluster, [head(f"Content-Length: {BODY_LIMIT + 1}")])
    check(answer, 413, "request_too_large", f"maximum size of {BODY_LIMIT} bytes")


def test_a_body_in_chunks_is_cut_off_at_the_limit(cluster: Cluster) -> None:
    megabyte = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
    answer = send(cluster, [head("Transfer-Encoding: chunked"), *[megabyte] * 33, b"0\r\n\r\n"])
    check(answer, 413, "request_too_large", f"maximum size of {BODY_LIMIT} bytes")


def test_a_body_in_chunks_is_served(cluster: Cluster) -> None:
    chunks = [b"%x\r\n%s\r\n" % (len(part), part) for part in (GOOD[:10], GOOD[10:])]
    assert send(cluster, [head("Transfer-Encoding: chunked"), *chunks, b"0\r\n\r\n"]).status == 200


def test_a_body_that_stops_coming_is_given_up(cluster: Cluster) -> None:
    answer = send(cluster, [request(GOOD)[:-20]])
    check(answer, 400, "invalid_request_error", "body: did not arrive within 1 s")


@pytest.mark.parametrize("coding", ["gzip", "br", "deflate, gzip"])
def test_a_compressed_body_is_refused_by_name(cluster: Cluster, coding: str) -> None:
    answer = send(cluster, [request(gzip.compress(GOOD), f"Content-Encoding: {coding}")])
    check(answer, 400, "invalid_request_error", f"content-encoding: '{coding}'")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "banana", ""])
def test_the_content_type_does_not_matter(cluster: Cluster, kind: str) -> None:
    assert send(cluster, [request(GOOD, f"Content-Type: {kind}")]).status == 200


# --- headers ------------------------------------------------------------------------------------------------------

HEADERS: dict[str, tuple[str, str]] = {
    "priority banana": ("X-Priority: banana", "X-Priority: must be one digit"),
    "priority 10": ("X-Priority: 10", "X-Priority: must be one digit"),
    "priority -1": ("X-Priority: -1", "X-Priority: must be one digit"),
    "priority in other digits": ("X-Priority: \N{ARABIC-INDIC DIGIT FIVE}", "X-Priority: must be one digit"),
    "agent too long": ("X-Agent-Id: " + "a" * 129, "X-Agent-Id: must be at most 128 printable characters"),
    "agent with a tab": ("X-Agent-Id: a\tb", "X-Agent-Id: must be at most"),
    "session too long": ("X-Claude-Code-Session-Id: " + "a" * 129, "X-Claude-Code-Session-Id: must be at most"),
}


@pytest.mark.parametrize(("header", "words"), HEADERS.values(), ids=HEADERS.keys())
def test_a_wrong_header_is_named(cluster: Cluster, header: str, words: str) -> None:
    check(send(cluster, [request(GOOD, header)]), 400, "invalid_request_error", words)


def test_two_hundred_headers_are_served(cluster: Cluster) -> None:
    assert send(cluster, [request(GOOD, *(f"X-Number-{number}: {number}" for number in range(200)))]).status == 200


FLOODS: dict[str, list[bytes]] = {
    "one of a megabyte": [request(GOOD, "X-Big: " + "v" * 1_000_000)],
    "one without end": [head()[:-2] + b"X-Big: ", *[b"v" * 100_000] * 30],
    "thousands": [request(GOOD, *(f"X-Number-{number}: {'v' * 40}" for number in range(3000)))],
    "a long path": [request(GOOD, path="/v1/" + "x" * 100_000)],
}


@pytest.mark.parametrize("parts", FLOODS.values(), ids=FLOODS.keys())
def test_a_flood_of_headers_is_refused(cluster: Cluster, parts: list[bytes]) -> None:
    check(send(cluster, parts), 431, "invalid_request_error", "headers: larger than 65536 bytes in all")


def test_headers_that_stop_coming_are_given_up(cluster: Cluster) -> None:
    check(send(cluster, [head()[:-10]]), 408, "invalid_request_error", "headers: did not arrive within 1 s")


def test_a_connection_that_never_asks_is_closed(cluster: Cluster) -> None:
    with socket.create_connection(("127.0.0.1", cluster.ports[0]), timeout=LONGEST_S) as connection:
        assert connection.recv(1) == b""


def test_a_kept_connection_serves_one_request_after_the_other(cluster: Cluster) -> None:
    with socket.create_connection(("127.0.0.1", cluster.ports[0]), timeout=LONGEST_S) as connection:
        for _ in range(3):
            connection.sendall(request(GOOD))
            response = HTTPResponse(connection)
            response.begin()
            assert (response.status, len(response.read()) > 0) == (200, True)


@pytest.mark.parametrize("name", ["X-Priority", "X-Agent-Id", "X-Claude-Code-Session-Id", "Anthropic-Version"])
def test_a_header_given_twice_is_served(cluster: Cluster, name: str) -> None:
    assert send(cluster, [request(GOOD, f"{name}: 1", f"{name}: 2")]).status == 200


NO_HTTP: dict[str, bytes] = {
    "words": b"hello there\r\n\r\n",
    "two lengths": request(GOOD, "Content-Length: 5"),
    "a length in words": head("Content-Length: banana") + GOOD,
    "a negative length": head("Content-Length: -5") + GOOD,
    "length and chunks": request(GOOD, "Transfer-Encoding: chunked"),
    "broken chunks": head("Transfer-Encoding: chunked") + b"zzz\r\nabc\r\n",
    "NUL in a header": request(GOOD, "X-Agent-Id: a\0b"),
    "CONNECT": b"CONNECT here:80 HTTP/1.1\r\nHost: here\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(300),
}


@pytest.mark.parametrize("data", NO_HTTP.values(), ids=NO_HTTP.keys())
def test_what_is_no_http_is_a_bad_request(cluster: Cluster, data: bytes) -> None:
    check(send(cluster, [data]), 400, "invalid_request_error", "Invalid HTTP request")


# --- paths, methods, versions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1", "/../../etc/passwd", "/%00", "/v1/messages/batches"])
def test_an_unknown_path_is_named(cluster: Cluster, path: str) -> None:
    check(send(cluster, [request(GOOD, path=path)]), 404, "not_found_error", "path: ")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_a_wrong_method_is_named(cluster: Cluster, method: str) -> None:
    check(send(cluster, [request(b"", method=method)]), 405, "not_found_error", f"{method} /v1/messages")


def test_an_old_client_gets_a_whole_answer_and_its_connection_closed(cluster: Cluster) -> None:
    answer = send(cluster, [request(GOOD, version="HTTP/1.0")])
    assert (answer.status, answer.headers["connection"]) == (200, "close")


def test_an_old_client_is_told_that_it_cannot_have_a_stream(cluster: Cluster) -> None:
    data = json.dumps(body(user("say 3 words"), stream=True)).encode()
    answer = send(cluster, [request(data, version="HTTP/1.0")])
    check(answer, 400, "invalid_request_error", "stream: HTTP/1.0 cannot carry a stream")


def test_a_hundred_connections_that_say_nothing_do_not_keep_others_out(cluster: Cluster) -> None:
    idle = [socket.create_connection(("127.0.0.1", cluster.ports[0])) for _ in range(100)]
    try:
        assert cluster.messages("say 3 words").status_code == 200
    finally:
        for connection in idle:
            connection.close()


@pytest.mark.parametrize("cut", [1, 40, 120, len(request(GOOD)) - 1])
def test_a_client_that_leaves_while_sending_leaves_nothing(cluster: Cluster, cut: int) -> None:
    with socket.create_connection(("127.0.0.1", cluster.ports[0])) as connection:
        connection.sendall(request(GOOD)[:cut])
    assert cluster.messages("say 3 words").status_code == 200


# --- pages of the web ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "foreign", [{"host": "evil.example"}, {"origin": "https://evil.example", "content-type": "text/plain"}]
)
def test_without_keys_a_page_of_the_web_is_not_answered(cluster: Cluster, foreign: dict[str, str]) -> None:
    answer = cluster.http.post("/v1/messages", content=json.dumps(body(user("say 3 words"))), headers=foreign)
    assert (answer.status_code, answer.json()["error"]["type"]) == (403, "permission_error")
    assert "CORRAL_API_KEYS" in answer.json()["error"]["message"]
