"""Conversations as clients send them: their parts, and any mixture of those."""

from typing import Any

from hypothesis import strategies as st

from api.protocol import normalise
from api.protocol.schema import validated
from scheduler.contract import Message

Entry = dict[str, Any]


def normal(*entries: Entry, merge_repeated: bool = True) -> tuple[Message, ...]:
    return normalise.messages(validated({"messages": list(entries)}).messages, merge_repeated=merge_repeated)[0]


def user(*blocks: Entry | str) -> Entry:
    return {"role": "user", "content": [text(block) if isinstance(block, str) else block for block in blocks]}


def assistant(*blocks: Entry | str) -> Entry:
    return user(*blocks) | {"role": "assistant"}


def system(content: str) -> Entry:
    return {"role": "system", "content": content}


def text(words: str) -> Entry:
    return {"type": "text", "text": words}


def call(call_id: str, name: str = "Bash", **arguments: Any) -> Entry:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def result(call_id: str, content: Any = "done", **more: Any) -> Entry:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def thinking(words: str) -> Entry:
    return {"type": "thinking", "thinking": words, "signature": "s"}


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}

ids = st.sampled_from(["1", "2", "1-2"])
texts = st.sampled_from(["", " ", "a", "b ", "<system-reminder>x"]).map(text)
results = st.builds(result, ids, st.sampled_from(["", "done", None, [text("a"), IMAGE]]))
calls = st.builds(call, ids)
thoughts = st.sampled_from(["", "t"]).map(thinking)
users = st.lists(texts | results | st.just(IMAGE), max_size=4).map(lambda blocks: user(*blocks))
assistants = st.lists(texts | calls | thoughts | st.just(IMAGE), max_size=4).map(lambda blocks: assistant(*blocks))
entries = st.lists(users | assistants | st.just(system("rule")), min_size=1, max_size=12)
