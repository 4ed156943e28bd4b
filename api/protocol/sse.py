"""Events as bytes of a server-sent event stream.

Owns: the framing of one event.
Never: which events there are (`events`).
"""

from typing import Any

import orjson

# Line ends in the eyes of clients that split decoded text; JSON allows them raw inside strings.
_LINE_ENDS = {
    "\N{LINE SEPARATOR}".encode(): rb"\u2028",
    "\N{PARAGRAPH SEPARATOR}".encode(): rb"\u2029",
    "\N{NEXT LINE}".encode(): rb"\u0085",
}


def encode(event: dict[str, Any]) -> bytes:
    """One event; its `type` is also its name. The data is one line, whatever the text holds."""
    data = orjson.dumps(event)
    for raw, escaped in _LINE_ENDS.items():
        data = data.replace(raw, escaped)
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), data)
