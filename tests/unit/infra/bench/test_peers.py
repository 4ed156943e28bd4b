"""The comparison with peers: how each is installed and run, and what is said of the figures."""

import asyncio
from pathlib import Path

import orjson
import pytest

from infra.bench.asking import MESSAGES, Outcome, Target
from infra.bench.house import Engine
from infra.bench.peers import packages, sides, table
from infra.bench.peers.one_engine import Asked, Found
from infra.bench.peers.packages import Package
from infra.bench.peers.several import BROKEN, OTHER_WORDS, TOO_LATE, WHOLE, verdict
from infra.bench.peers.sides import CORRAL, LLAMA_SERVER
from infra.errors import StartError

pytestmark = pytest.mark.unit

ENGINES = (Engine("http://127.0.0.1:1", "key"), Engine("http://127.0.0.1:2", "key"))
NAMES = [CORRAL, "LiteLLM", LLAMA_SERVER]
ENDED = Outcome(first_s=0.1, whole_s=1, output_tokens=5)
CUT = Outcome(first_s=0.1, whole_s=1)
LOST_S = 0.05
NOBODY: Found = {"LiteLLM": {"error": "away"}, "claude-code-router": {"error": "away"}}


def rate(ours: float, theirs: float) -> dict[str, Found]:
    return {"rate": {CORRAL: {"per_s": ours}, "LiteLLM": {"per_s": theirs}, "claude-code-router": {"per_s": 1.0}}}


def test_a_row_on_which_corral_is_behind_is_said_with_both_figures() -> None:
    (said,) = table.standing(rate(10, 12))
    assert said == "Corral is not ahead of LiteLLM: requests a second, 16 clients: 10 against 12"
    assert table.standing(rate(12, 10)) == ["Corral is ahead on every row that it must be ahead on."]


def test_a_peer_that_cannot_do_a_row_is_behind_and_the_reason_stands_below() -> None:
    found: dict[str, Found] = {
        "kill": {CORRAL: {"answer": WHOLE}, "LiteLLM": {"error": "no such thing"}, "claude-code-router": {}},
        "first": {CORRAL: {"added_p50_ms": 2.0, "added_p95_ms": 3.0, "repeated": 4}, "LiteLLM": {}},
    }
    assert table.standing(found) == ["claude-code-router did not run, so nothing is said of it: first"]
    assert table.notes(NAMES, found) == [
        "- LiteLLM, kill: no such thing",
        "- Corral, first: 4 requests failed and were asked again",
    ]
    line = next(one for one in table.LINES if one.row == "kill")
    assert [table.cell(found, line, name) for name in NAMES] == [WHOLE, "-", "-"]


def test_who_was_not_there_is_not_passed() -> None:
    said = table.standing({"rate": {CORRAL: {"per_s": 10.0}, "LiteLLM": {"per_s": 5.0}}})
    assert said == ["claude-code-router did not run, so nothing is said of it: rate"]


def test_the_router_must_be_passed_on_the_agents_rows_only() -> None:
    figures = {"later_ttft_p50_ms": 1, "prefilled": 1, "later_ratio": 1, "failed": 0, "wall_s": 1}
    found: dict[str, Found] = {
        "agents": {CORRAL: {name: value * 2 for name, value in figures.items()}, "vllm-router": dict(figures)} | NOBODY,
        "four": {CORRAL: {"mean_ms": 2}, "vllm-router": {"mean_ms": 1}} | NOBODY,
    }
    behind = table.standing(found)
    assert len(behind) == 4, "nobody failed: that row is equal"
    assert all("agents:" in sentence for sentence in behind)


def test_the_columns_begin_with_corral_and_end_with_the_engine() -> None:
    assert table.order(["LiteLLM", "vllm-router"]) == [CORRAL, "LiteLLM", "vllm-router", LLAMA_SERVER]


@pytest.mark.parametrize(
    ("text", "outcome", "hit", "said"),
    [
        ("one two", ENDED, True, WHOLE),
        ("one two", ENDED, False, TOO_LATE),
        ("one", ENDED, True, BROKEN),
        ("one three", ENDED, True, OTHER_WORDS),
        ("one two", CUT, True, BROKEN),
    ],
)
def test_an_answer_whose_engine_died_is_called_what_it_is(text: str, outcome: Outcome, hit: bool, said: str) -> None:
    assert verdict("one two", text, outcome, hit) == said


@pytest.mark.parametrize("peer", sides.peers("consistent_hash"), ids=lambda peer: peer.name)
def test_every_peer_is_run_on_loopback_before_the_engines_given(peer: sides.Peer, tmp_path: Path) -> None:
    started = peer.starting(Path("/program"), ENGINES, 9, tmp_path)
    written = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    told = " ".join(started.command) + written.decode()
    assert "/program" in started.command
    assert "127.0.0.1" in told
    assert [engine.url in told for engine in ENGINES] == [True, peer.spreads]


def test_litellm_keeps_a_session_at_its_engine(tmp_path: Path) -> None:
    (litellm,) = (peer for peer in sides.peers("cache_aware") if peer.package is packages.LITELLM)
    litellm.starting(Path("/program"), ENGINES, 9, tmp_path)
    config = orjson.loads((tmp_path / "litellm.yaml").read_bytes())
    assert len(config["model_list"]) == 2
    assert config["router_settings"]["optional_pre_call_checks"] == ["session_affinity"]


def test_a_peer_that_does_not_start_is_left_out_and_said_with_its_last_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (litellm, *_) = sides.peers("consistent_hash")
    with sides.all_opened({litellm: tmp_path / "no-such-program"}, ENGINES, tmp_path) as there:
        assert there == []
    assert "cannot run" in capsys.readouterr().err


async def test_the_time_of_a_request_that_had_to_be_repeated_is_that_of_both() -> None:
    chunks = [{"type": "content_block_delta"}, {"type": "message_delta", "usage": {"output_tokens": 1}}]
    whole = b"".join(b"data: %b\n\n" % orjson.dumps(chunk) for chunk in [*chunks, {"type": "message_stop"}])
    answers = [b"HTTP/1.1 502 Bad Gateway\r\nconnection: close\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n" + whole]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(LOST_S if len(answers) == 2 else 0)
        writer.write(answers.pop(0))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        target = Target(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "", MESSAGES)
        asked = Asked("one", target)
        outcome = await asked.ask(b"{}", {})
        await target.close()
    assert asked.repeated == 1
    assert LOST_S < outcome.first_s <= outcome.whole_s


def test_a_failed_installation_is_told_and_done_again_the_next_time(tmp_path: Path) -> None:
    package = Package("nothing", "npm", "./no-such-folder", "1", "cli.js")
    for _ in range(2):
        with pytest.raises(StartError, match="its installation failed"):
            packages.install(package, tmp_path)
    assert not (tmp_path / package.folder / packages.MARK).exists()


def test_what_is_installed_is_taken_as_it_is(tmp_path: Path) -> None:
    package = Package("there", "npm", "there", "1", "cli.js")
    folder = tmp_path / package.folder
    folder.mkdir()
    (folder / packages.MARK).touch()
    assert packages.install(package, tmp_path) == folder / "cli.js"


def test_a_peer_finds_nothing_of_corral_in_its_environment() -> None:
    environ = {"CORRAL_API_KEYS": "a:b", "PYTHONPATH": "x", "https_proxy": "y", "OPENAI_API_KEY": "z", "PATH": "p"}
    assert packages.clean(environ) == {"PATH": "p"}
