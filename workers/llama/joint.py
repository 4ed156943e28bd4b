"""What a model's template writes between the text and the calls of one answer.

Owns: the question that shows it, and how it is read from the rendered prompt.
Never: speaks to the engine.

The engine hands the blanks before a call out as the end of the text. The template writes its own there when the answer
comes back as history: with both, each answer of text and calls would lose its calls from the cache. Tried on the real
engine with the form of Qwen's templates: `Looking.\\n<tool_call>` is answered as the text `Looking.\\n`, and comes
back as `Looking.\\n\\n<tool_call>`.
"""

import re
from typing import Any

_TEXT, _TOOL = "corral-text", "corral_tool"
_CALL = {"id": "corral123", "type": "function", "function": {"name": _TOOL, "arguments": "{}"}}
QUESTION: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": "Go on."},
        {"role": "assistant", "content": _TEXT, "tool_calls": [_CALL]},
        {"role": "tool", "tool_call_id": _CALL["id"], "content": "done"},
    ],
    "tools": [{"type": "function", "function": {"name": _TOOL, "description": "", "parameters": {"type": "object"}}}],
}


def call_joint(prompt: str) -> str:
    """The blanks between text and call in the `prompt` that QUESTION renders to; empty when there are none."""
    found = re.search(rf"{_TEXT}(\s*).*{_TOOL}", prompt, re.DOTALL)
    return found[1] if found else ""
