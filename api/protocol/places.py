"""What a system text says of one place only: the working folder, the memory folder, the state of its repository.

Owns: finding these sections of Claude Code's system text, and telling them in the first message instead. Templates put
the tools after the system text, so one path in it keeps two agents in two folders from sharing 20,000 tokens. The
client does the same by itself when it is asked to (`--exclude-dynamic-system-prompt-sections`, print mode only).
Never: drops a word of them; touches a text in which it does not find them.
"""

import re
from functools import lru_cache

from api.protocol.schema import Text
from scheduler.contract import Message, TextBlock

# To the next heading or the end of the text.
_REST = r"(?:(?!^# ).*(?:\n|\Z))*?(?=^# |\Z)"
# Each begins as Claude Code 2.1.197 writes it; the words in the middle tell its section from another of that name.
_SECTIONS = re.compile(
    r"^# Memory\n(?=\s*You have a persistent file-based memory at `)" + _REST + r"|"
    r"^# Environment\n(?=(?:(?!# ).*\n)*.*[Ww]orking directory: )" + _REST + r"|"
    r"^gitStatus: This is the git status" + _REST + r"|"
    r"^<env>\n(?=Working directory: )(?:(?!</?env>).*\n)*</env>\n?",
    re.MULTILINE,
)
# Each turn sends the same text, and looking through it costs 40 us. Together they bound what is kept.
KNOWN_TEXTS = 64
KNOWN_CHARACTERS = 50_000
INTRODUCTION = "This holds for the place where you work:"


def split(text: str) -> tuple[str, tuple[str, ...]]:
    """The text without such sections, and the sections in their order."""
    sections = tuple(found.group().strip() for found in _SECTIONS.finditer(text))
    return (_SECTIONS.sub("", text).rstrip(), sections) if sections else (text, ())


_kept_split = lru_cache(KNOWN_TEXTS)(split)


def split_blocks(blocks: list[Text]) -> tuple[list[Text], tuple[str, ...]]:
    """The same of a system text in blocks. A section ends with its block: the next one may be another author's."""
    found = [(_kept_split if len(block.text) <= KNOWN_CHARACTERS else split)(block.text) for block in blocks]
    rests = [
        block.model_copy(update={"text": rest}) if sections else block
        for block, (rest, sections) in zip(blocks, found, strict=True)
    ]
    return rests, tuple(section for _, sections in found for section in sections)


def told(messages: tuple[Message, ...], sections: tuple[str, ...]) -> tuple[Message, ...]:
    """The messages with the sections at the start of the first one, which is the user's."""
    if not sections:
        return messages
    words = "\n\n".join((INTRODUCTION, *sections))
    reminder = TextBlock(text=f"<system-reminder>\n{words}\n</system-reminder>\n")
    first, *others = messages
    return (first.model_copy(update={"content": (reminder, *first.content)}), *others)
