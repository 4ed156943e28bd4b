"""Who asks, and how urgent it is."""

import json
from typing import Any

import pytest

from api.protocol.identity import SIDE_CHARACTERS, identify, level
from infra.errors import BadRequest
from scheduler.contract import GenerationRequest, Identity, Kind, Message, TextBlock, Tool
from scheduler.policy.chain import chain

pytestmark = pytest.mark.unit

SESSION = "0e0d30f1-44db-43d5-a8ba-8e25b16cc3e9"
BASH = Tool(name="Bash", input_schema={"type": "object"})


def request(*texts: str, system: str = "s", tools: tuple[Tool, ...] = (BASH,)) -> GenerationRequest:
    messages = [
        Message(role="assistant" if number % 2 else "user", content=(TextBlock(text=words),))
        for number, words in enumerate(texts or ("hello",))
    ]
    return GenerationRequest(model="m", system=system, messages=tuple(messages), tools=tools, max_tokens=1)


def who(
    headers: dict[str, str] | None = None,
    metadata: Any = None,
    asked: GenerationRequest | None = None,
    key_name: str = "key",
) -> Identity:
    asked = asked or request()
    return identify(headers or {}, metadata, asked, chain(asked), key_name)


SESSION_HEADER = {"x-claude-code-session-id": SESSION}
SUBAGENT = SESSION_HEADER | {"x-claude-code-agent-id": "a1"}

FORMS = [
    (SESSION_HEADER, None),
    (SESSION_HEADER, {"user_id": json.dumps({"session_id": "another"})}),
    ({}, {"user_id": json.dumps({"device_id": "d", "account_uuid": "", "session_id": SESSION})}),
    ({}, {"user_id": {"session_id": SESSION}}),
    ({}, {"user_id": f"user_abc_account__session_{SESSION}"}),
    ({}, {"user_id": f"user_a_session_b_account_c_session_{SESSION}"}),
]


@pytest.mark.parametrize(("headers", "metadata"), FORMS)
def test_every_form_of_a_session_is_understood(headers: dict[str, str], metadata: Any) -> None:
    identity = who(headers, metadata)
    assert (identity.session, identity.agent, identity.identified) == (SESSION, SESSION, True)
    assert identity.conversation == who(SESSION_HEADER).conversation


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        "text",
        [1],
        {},
        {"user_id": None},
        {"user_id": 3},
        {"user_id": ""},
        {"user_id": "somebody"},
        {"user_id": "{not json"},
        {"user_id": "[1]"},
        {"user_id": "[" * 5_000},
        {"user_id": json.dumps({"session_id": 3})},
        {"user_id": json.dumps({"session_id": "x" * 200})},
        {"user_id": {"session_id": "line\nbreak"}},
    ],
)
def test_metadata_of_any_other_shape_says_nothing(metadata: Any) -> None:
    identity = who({}, metadata)
    assert (identity.session, identity.agent, identity.identified) == (None, "key", False)


def test_the_agent_is_named_by_header_then_session_then_key() -> None:
    assert who(SESSION_HEADER | {"x-agent-id": " reviewer "}).agent == "reviewer"
    assert who(SESSION_HEADER | {"x-agent-id": ""}).agent == SESSION
    assert who().agent == "key"


def test_an_agent_header_alone_identifies() -> None:
    assert who({"x-agent-id": "reviewer"}).identified
    assert who({"x-agent-id": "reviewer"}).conversation != who({"x-agent-id": "writer"}).conversation


@pytest.mark.parametrize("header", ["X-Agent-Id", "X-Claude-Code-Session-Id", "X-Claude-Code-Agent-Id"])
@pytest.mark.parametrize("value", ["x" * 129, "a\tb", "a\x1b[31m", "a\u202eb"])
def test_a_label_that_cannot_be_shown_is_refused_by_its_header(header: str, value: str) -> None:
    with pytest.raises(BadRequest, match=f"^{header}: must be at most 128 printable characters"):
        who({header.lower(): value})


@pytest.mark.parametrize("name", ["reviewer", "rené", "审查", "ren\xe9 in Latin-1"])
def test_an_agent_is_called_as_it_calls_itself(name: str) -> None:
    assert who({"x-agent-id": name if "Latin" in name else name.encode().decode("latin-1")}).agent == name


def test_a_conversation_stays_the_same_as_it_grows() -> None:
    for headers in ({}, SESSION_HEADER, {"x-agent-id": "reviewer"}):
        short = who(headers, asked=request("a"))
        assert who(headers, asked=request("a", "b", "c")).conversation == short.conversation


def test_conversations_differ_by_key_session_subagent_and_prefix() -> None:
    different = [
        who(SESSION_HEADER),
        who(SESSION_HEADER, key_name="other"),
        who({"x-claude-code-session-id": "other"}),
        who(SUBAGENT),
        who(SUBAGENT | {"x-claude-code-agent-id": "a2"}),
        who(SESSION_HEADER, asked=request(system="other")),
        who(SESSION_HEADER, asked=request(tools=())),
        who(SESSION_HEADER, asked=request(tools=(BASH.model_copy(update={"description": "other"}),))),
        who(),
    ]
    assert len({identity.conversation for identity in different}) == len(different)


def test_the_agents_name_does_not_move_a_session() -> None:
    renamed = who(SESSION_HEADER | {"x-agent-id": "reviewer"})
    assert renamed.conversation == who(SESSION_HEADER).conversation


def test_without_identity_the_first_message_tells_conversations_apart() -> None:
    assert who(asked=request("a")).conversation != who(asked=request("b")).conversation


def test_kinds_are_main_subagent_and_side() -> None:
    assert who(SESSION_HEADER).kind is Kind.MAIN
    assert who(SUBAGENT).kind is Kind.SUBAGENT
    assert who(SUBAGENT, asked=request(tools=())).kind is Kind.SUBAGENT
    assert who(SESSION_HEADER, asked=request(tools=())).kind is Kind.SIDE
    assert who(asked=request(tools=())).kind is Kind.MAIN


def test_an_agent_that_has_no_tools_at_all_is_no_side_call() -> None:
    assert who({"x-agent-id": "reviewer"}, asked=request(tools=())).kind is Kind.MAIN
    assert who(SESSION_HEADER, asked=request("a" * SIDE_CHARACTERS, tools=())).kind is Kind.MAIN
    assert who(SESSION_HEADER | {"x-agent-id": "reviewer"}, asked=request(tools=())).kind is Kind.SIDE


def test_a_compaction_is_the_main_line_and_the_same_conversation() -> None:
    compaction = who(SESSION_HEADER, asked=request("a", "b", "write a <summary>"))
    assert compaction.kind is Kind.MAIN
    assert compaction.conversation == who(SESSION_HEADER).conversation


def test_names_are_short_and_the_same_in_every_process() -> None:
    assert who(SESSION_HEADER).conversation == "acd675973423eed5a921150d"
    assert who(SESSION_HEADER).line == "1c6a875c3c9710096fdab856"


CHANGED = [
    request(system="other"),
    request(tools=(BASH.model_copy(update={"description": "other"}),)),
    request().model_copy(update={"model": "other"}),
    request("hello", "well", "go on"),
]


@pytest.mark.parametrize("headers", [SESSION_HEADER, SUBAGENT, {"x-agent-id": "reviewer"}, {}])
def test_a_line_stays_when_its_prefix_or_model_changes(headers: dict[str, str]) -> None:
    assert {who(headers, asked=asked).line for asked in CHANGED} == {who(headers).line}


def test_lines_of_the_main_line_each_subagent_and_side_calls_differ() -> None:
    different = [
        who(SESSION_HEADER),
        who(SESSION_HEADER, asked=request(tools=())),
        who(SUBAGENT),
        who(SUBAGENT | {"x-claude-code-agent-id": "a2"}),
        who({"x-claude-code-session-id": "other"}),
        who(SESSION_HEADER, key_name="other"),
        who(),
        who(asked=request("another task")),
    ]
    assert len({identity.line for identity in different}) == len(different)


@pytest.mark.parametrize(("value", "expected"), [(None, 5), ("", 5), ("  ", 5), ("0", 0), (" 9 ", 9)])
def test_priority_is_the_header_or_the_default(value: str | None, expected: int) -> None:
    assert level({} if value is None else {"x-priority": value}, 5) == expected


@pytest.mark.parametrize("value", ["banana", "10", "-1", "1.5", "05", "\u0665", "\u00b2", "1,2"])
def test_any_other_priority_is_refused_with_what_is_allowed(value: str) -> None:
    with pytest.raises(BadRequest, match=r"^X-Priority: must be one digit, 0 \(most urgent\) to 9$"):
        level({"x-priority": value}, 5)
