"""What is asked of a running engine, and what its answers mean."""

import httpx
import pytest

from workers.llama.probe import EngineProps, Health, NotOursError, Probe, read_props

pytestmark = pytest.mark.unit

PROPS = {"total_slots": 2, "default_generation_settings": {"n_ctx": 4096}, "model_path": "/m.gguf"}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, httpx.Response | Exception]:
    """Route to answer; the engine at the other end."""
    answers: dict[str, httpx.Response | Exception] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["Authorization"] == "Bearer key"
        found = answers.get(request.url.path, httpx.Response(500))
        if isinstance(found, Exception):
            raise found
        return found

    client = httpx.Client
    monkeypatch.setattr(httpx, "Client", lambda **values: client(**values, transport=httpx.MockTransport(answer)))
    return answers


@pytest.mark.parametrize(
    ("answer", "health"),
    [
        (httpx.Response(200), Health.OK),
        (httpx.Response(503), Health.LOADING),
        (httpx.ConnectError("refused"), Health.SILENT),
        (httpx.ReadTimeout("late"), Health.SILENT),
    ],
)
def test_health_is_read_from_the_status(
    asked: dict[str, httpx.Response | Exception], answer: httpx.Response | Exception, health: Health
) -> None:
    asked["/health"] = answer
    with Probe(1, "key") as engine:
        assert engine.health() is health


def test_properties_come_from_the_engine_alone(asked: dict[str, httpx.Response | Exception]) -> None:
    asked["/props"] = httpx.Response(200, json=PROPS | {"modalities": {"vision": True}, "build_info": "b1"})
    with Probe(1, "key") as engine:
        assert engine.props() == EngineProps(2, 4096, True, "/m.gguf", "b1", "")


@pytest.mark.parametrize("answer", [httpx.Response(503), httpx.ConnectError("refused")])
def test_an_engine_that_cannot_tell_yet_has_no_properties(
    asked: dict[str, httpx.Response | Exception], answer: httpx.Response | Exception
) -> None:
    asked["/props"] = answer
    with Probe(1, "key") as engine:
        assert engine.props() is None


@pytest.mark.parametrize("status", [401, 404])
def test_a_server_that_does_not_know_our_key_is_not_ours(
    asked: dict[str, httpx.Response | Exception], status: int
) -> None:
    asked["/props"] = httpx.Response(status)
    with Probe(1, "key") as engine, pytest.raises(NotOursError):
        engine.props()


@pytest.mark.parametrize(
    ("answer", "joint"),
    [
        (httpx.Response(200, json={"prompt": "corral-text\n<tool_call>corral_tool"}), "\n"),
        (httpx.Response(400, json={"error": "no calls"}), ""),
        (httpx.ReadTimeout("late"), ""),
    ],
)
def test_the_template_is_asked_what_it_writes_before_a_call(
    asked: dict[str, httpx.Response | Exception], answer: httpx.Response | Exception, joint: str
) -> None:
    asked["/props"], asked["/apply-template"] = httpx.Response(200, json=PROPS), answer
    with Probe(1, "key") as engine:
        props = engine.props()
    assert props is not None
    assert props.call_joint == joint


def test_an_older_engine_says_less() -> None:
    assert read_props(PROPS) == EngineProps(2, 4096, False, "/m.gguf", "", "")
