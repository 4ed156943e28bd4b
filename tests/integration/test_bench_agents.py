"""The agents bench runs from nothing to figures on the stand-in engine and leaves no process behind."""

import re
from pathlib import Path

import orjson
import psutil
import pytest

from infra.bench import agents, agents_plays
from infra.bench.agents_arms import CORRAL, flags, running, settings
from infra.bench.agents_house import plain
from infra.bench.agents_routing import POLICIES
from infra.bench.command import run
from infra.errors import ConfigError, EngineError
from tests.doubles.cluster import empty_model, standin_command
from tests.doubles.engine import EngineProcess

pytestmark = pytest.mark.integration


def living_children() -> set[int]:
    """Pids of this process's descendants; other tests of the session may own some."""
    return {p.pid for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE}


def test_arms_are_started_measured_and_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, before = tmp_path / "figures.json", living_children()
    agents.main(
        start=True,
        model=str(empty_model(tmp_path)),
        workers=1,
        slots=5,
        context=8192,
        given=[f"llama_server={standin_command(tmp_path)}"],
        arms="corral,pinned",
        repeat=1,
        agents=2,
        turns=2,
        base=800,
        words="20-60",
        gap=0,
        subagents=1,
        sides=1,
        seed="seed",
        json_file=file,
    )
    arms = orjson.loads(file.read_bytes())["arms"]
    assert set(arms) == {CORRAL, "pinned"}
    for name, arm in arms.items():
        (found,) = arm["rounds"]
        assert (found["requests"], found["failed"]) == (2 * (2 * 2 + 3), 0), name
        assert 0 < found["shared_minimum"] <= found["minimum"]
        assert 600 < found["base_tokens"] < 1000
    assert "tokens prefilled" in capsys.readouterr().out
    assert living_children() <= before


def test_engines_that_run_are_asked_by_every_policy(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    one, two = (EngineProcess(tmp_path, empty_model(tmp_path), kind="standin", slots=2, key="k") for _ in range(2))
    with one, two:
        agents.main(
            engines=f"{one.url},{two.url}", engine_key="k", repeat=2, agents=4, turns=2, base=800, gap=0, json_file=file
        )
    arms = orjson.loads(file.read_bytes())["arms"]
    assert set(arms) == set(POLICIES)
    assert [run["failed"] for arm in arms.values() for run in arm["rounds"]] == [0] * 6
    assert [run["moves"] for run in arms["pinned"]["rounds"]] == [0, 0]
    assert all(run["of_reusable_pct"] > 99 for run in arms["pinned"]["rounds"])


@pytest.mark.parametrize("named", [True, False])
def test_a_failed_request_is_an_error_with_its_arm_and_its_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], named: bool
) -> None:
    file = tmp_path / "figures.json" if named else None
    words = "stand in .*figures.json" if named else "corral: status 401: "
    with (
        EngineProcess(tmp_path, empty_model(tmp_path), kind="standin", slots=2, key="k") as engine,
        pytest.raises(EngineError, match=f"^requests failed: 8 of corral; .*{words}"),
    ):
        agents.main(url=engine.url, key="wrong", repeat=2, agents=2, turns=2, base=100, gap=0, json_file=file)
    assert re.search(r"of these failed\W+8\W", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"url": "http://127.0.0.1:1"}, "http://127.0.0.1:1: nobody answers there"),
        ({"engines": "http://127.0.0.1:1"}, "http://127.0.0.1:1: nobody answers there"),
        ({"url": "127.0.0.1:1"}, "127.0.0.1:1: must be an address as http"),
    ],
)
def test_an_address_where_nobody_answers_is_said_before_anything_is_asked(
    option: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents_plays, "Replay", None)  # whoever asks all the same fails
    with pytest.raises(ConfigError, match=f"^{words}"):
        agents.main(**option)  # type: ignore[arg-type]


def test_the_help_names_every_arm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["agents", "--help"])
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        run(agents.main)
    shown = capsys.readouterr().out
    assert all(name in shown for name in agents.ALL_ARMS)


def test_nobody_to_ask_is_said() -> None:
    with pytest.raises(ConfigError, match="--start"):
        running([], [])


@pytest.mark.parametrize("option", [{"words": "600-100"}, {"words": "many"}, {"arms": "corral,random"}])
def test_a_wrong_option_is_named_before_anything_starts(option: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=f"--{next(iter(option))}"):
        agents.main(url="http://127.0.0.1:1", repeat=1, **option)  # type: ignore[arg-type]


def test_the_store_is_on_or_off() -> None:
    assert settings("off", [])["store_dir"] == "off"
    assert "store_dir" not in settings("on", [])
    with pytest.raises(ConfigError, match="--store"):
        settings("maybe", [])


@pytest.mark.parametrize("given", ["slots", "no_such_setting=1", "queue_limit=none"])
def test_an_unknown_setting_is_named(given: str) -> None:
    with pytest.raises(ConfigError, match="--set"):
        settings("on", [given])


def test_flags_of_engines_asked_directly_are_read_as_a_shell_does() -> None:
    assert flags("--cache-ram 2048 -b '64'") == ["--cache-ram", "2048", "-b", "64"]
    with pytest.raises(ConfigError, match="--direct-flags"):
        flags("'open")


def test_an_engine_asked_directly_has_corral_s_command_but_its_own_port_and_no_store() -> None:
    command = ["llama-server", "-m", "x.gguf", "--port", "1", "--slot-save-path", "/somewhere", "-np", "4"]
    assert plain(command, 2) == ["llama-server", "-m", "x.gguf", "--port", "2", "-np", "4"]
