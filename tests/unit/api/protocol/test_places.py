"""What a system text says of one place: found, told in the first message, and never lost."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.protocol import places
from api.protocol.places import KNOWN_CHARACTERS
from api.protocol.request import Reading, parse
from api.protocol.schema import Text
from scheduler.contract import Message, TextBlock
from scheduler.packing import unpack
from tests.doubles.bodies import claude_body

pytestmark = pytest.mark.unit

STATIC = "You are an agent.\n\n# Harness\n - One rule.\n\n"
LAST = "# Context management\nWhen it grows long, it is summarised.\n"


def memory(path: str) -> str:
    return (
        f"# Memory\n\nYou have a persistent file-based memory at `{path}`. Write there.\n\n```\n---\nname: x\n```\n\n"
    )


def environment(path: str) -> str:
    return f"# Environment\nYou have been invoked here: \n - Primary working directory: {path}\n - Platform: linux\n\n"


def git(branch: str) -> str:
    return (
        f"gitStatus: This is the git status at the start.\n\nCurrent branch: {branch}\n\nRecent commits:\nabc # done\n"
    )


def text(path: str, branch: str = "main") -> str:
    return STATIC + memory(path) + environment(path) + LAST + "\n" + git(branch)


def test_two_folders_share_one_system_text_and_each_is_told_its_own() -> None:
    one, other = places.split(text("/home/a", "main")), places.split(text("/home/b", "feature"))
    assert one[0] == other[0] == (STATIC + LAST).rstrip()
    assert [section.splitlines()[0] for section in one[1]] == ["# Memory", "# Environment", git("").splitlines()[0]]
    assert "/home/a" in "".join(one[1])
    assert "feature" in "".join(other[1])


@given(st.text(st.characters(exclude_characters="`\r"), max_size=40), st.text(max_size=20))
def test_no_word_is_lost(path: str, branch: str) -> None:
    whole = text(path, branch)
    rest, sections = places.split(whole)
    assert sorted(" ".join([rest, *sections]).split()) == sorted(whole.split())


@pytest.mark.parametrize(
    "other",
    [
        "# Memory\nThe memory of elephants.\n",
        "# Environment\n - You are powered by a model.\n\n# More\nWorking directory: none\n",
        "Say gitStatus: This is the git status.",
        "<env>\nnothing\n</env>\n",
        "",
    ],
)
def test_a_text_without_such_sections_stays_as_it_is(other: str) -> None:
    assert places.split(other) == (other, ())


def test_the_older_form_of_the_environment_is_found() -> None:
    rest, sections = places.split("About it:\n<env>\nWorking directory: /x\nPlatform: linux\n</env>\nGo on.")
    assert rest == "About it:\nGo on."
    assert sections == ("<env>\nWorking directory: /x\nPlatform: linux\n</env>",)


@given(
    st.lists(st.sampled_from([*map(text, ("/a", "/b")), STATIC, "", git("a"), git("b" * KNOWN_CHARACTERS)]), max_size=6)
)
def test_blocks_are_split_one_by_one_seen_before_or_not(whole: list[str]) -> None:
    rests, sections = places.split_blocks([Text(type="text", text=each) for each in whole])
    assert [block.text for block in rests] == [places.split(each)[0] for each in whole]
    assert list(sections) == [section for each in whole for section in places.split(each)[1]]


def test_a_text_is_looked_through_once_and_one_too_large_to_keep_each_time() -> None:
    usual, large = (Text(type="text", text=git("c" * size)) for size in (5, KNOWN_CHARACTERS))
    places.split_blocks([usual])
    before = places._kept_split.cache_info()
    places.split_blocks([usual, large, usual])
    after = places._kept_split.cache_info()
    assert (after.hits, after.misses) == (before.hits + 2, before.misses)


def test_it_is_told_before_what_the_user_says() -> None:
    said = (Message(role="user", content=(TextBlock(text="hi"),)), Message(role="assistant", content=()))
    first, second = places.told(said, ("# Environment\nhere",))
    assert [block.text.strip() for block in first.content if isinstance(block, TextBlock)][1] == "hi"
    [reminder, _] = first.content
    assert isinstance(reminder, TextBlock)
    assert "# Environment\nhere\n" in reminder.text
    assert second == said[1]
    assert places.told(said, ()) == said


@pytest.mark.parametrize("share_base", [True, False])
def test_the_setting_decides_whether_agents_in_two_folders_have_one_base(share_base: bool) -> None:
    def base(path: str) -> str:
        body = claude_body() | {"system": [{"type": "text", "text": text(path)}]}
        raw = json.dumps(body).encode()
        reading = Reading(share_base=share_base)
        call = parse(raw, {}, key_name="k", models=["m"], default_level=5, reading=reading)
        assert path in unpack(call.request.body).model_dump_json()
        return call.chain.base

    assert (base("/home/a") == base("/home/b")) is share_base


def test_a_section_that_is_never_closed_is_left_alone_and_many_of_them_cost_no_more_than_their_length() -> None:
    opened = "<env>\nWorking directory: /a\n"
    closed = "<env>\nWorking directory: /b\n</env>"
    assert places.split(f"{opened}{closed}\n") == (opened.rstrip(), (closed,))
    flood = opened * 200_000  # looked through again from each of them it would take hours
    assert places.split(flood) == (flood, ())


def test_a_section_ends_with_its_block_so_that_what_the_operator_adds_stays_in_the_system_text() -> None:
    blocks = [STATIC + environment("/home/a"), "Company policy: no secrets."]
    tools = [{"type": "web_search_20250305", "name": "web_search"}]
    body = claude_body() | {"system": [{"type": "text", "text": block} for block in blocks], "tools": tools}
    request = unpack(parse(json.dumps(body).encode(), {}, key_name="k", models=["m"], default_level=5).request.body)
    assert request.system.startswith(
        f"{STATIC.rstrip()}\n\nCompany policy: no secrets.\n\nThese tools are not available"
    )
    [reminder, *_] = request.messages[0].content
    assert isinstance(reminder, TextBlock)
    assert "/home/a" in reminder.text
