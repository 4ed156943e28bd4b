"""A trace is read as it was written, or said to be wrong with its line."""

from pathlib import Path

import pytest

from infra.bench.agents_session import Kind
from infra.bench.trace import Request, head, line_of, read
from infra.errors import ConfigError

pytestmark = pytest.mark.unit


def request(n: int = 0, keeps: int = 0, after: int | None = None, conversation: str = "cccc") -> Request:
    new = (("000000000000", 900), ("000000000001", 100)) if not keeps else ((f"{n:012x}", 50),)
    return Request(
        n=n,
        at_s=1.5 + n,
        after=after,
        gap_s=0.25,
        session="aaaa",
        agent="bbbb",
        conversation=conversation,
        kind=Kind.MAIN,
        level=5,
        tools=True,
        keeps=keeps,
        new=new,
        prompt_tokens=1000,
        cached_tokens=0,
        output_tokens=10,
        stop="end_turn",
        queue_ms=0,
        first_ms=10,
        took_ms=20,
    )


def written(path: Path, *lines: bytes) -> Path:
    path.write_bytes(b"".join(lines))
    return path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    requests = [request(), request(1, keeps=2, after=0)]
    trace = read(written(tmp_path / "t", head(), *map(line_of, requests)))
    assert trace.requests == requests
    assert trace.prompts[1] == (*requests[0].new, *requests[1].new)
    assert (trace.sessions, trace.turns, trace.base_tokens(Kind.MAIN), trace.base_tokens(Kind.SIDE)) == (1, 2, 900, 0)
    assert "2 requests (2 main) in 1 sessions" in trace.about


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "it is empty"),
        ([head()], "holds no request"),
        ([b'{"corral_trace":9}\n'], "another version"),
        ([b"{}\n"], "line 1: corral_trace: field required"),
        ([head(), b"words\n"], "line 2: it: invalid json"),
        ([head(), line_of(request()).replace(b'"level":5', b'"level":"x"')], "line 2: level: "),
        ([head(), line_of(request()).replace(b'"after":null', b'"after":0')], "line 2: it: value error"),
        ([head(), line_of(request(1))], "request 0 does not follow"),
        ([head(), line_of(request(0, keeps=3))], "request 0 does not follow"),
    ],
)
def test_what_is_wrong_is_told_with_the_file_and_the_line(tmp_path: Path, lines: list[bytes], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        read(written(tmp_path / "t", *lines))
    assert str(tmp_path / "t") in str(caught.value)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read: No such file"):
        read(tmp_path / "none")
