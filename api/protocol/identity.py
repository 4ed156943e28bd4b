"""Who asks: agent, conversation, kind and priority, from headers, metadata and the prompt's prefix.

Owns: which header or field says what, and how a conversation's name is made.
Never: where a conversation runs; a key's rights (`api.auth`).
"""

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import orjson

from infra.errors import BadRequest
from infra.labels import MAX_LABEL_CHARS, is_label
from scheduler.contract import LEVELS, GenerationRequest, Identity, Kind
from scheduler.policy.chain import Chain

AGENT_HEADER = "x-agent-id"
PRIORITY_HEADER = "x-priority"
SESSION_HEADER = "x-claude-code-session-id"
SUBAGENT_HEADER = "x-claude-code-agent-id"
# Characters of a hexadecimal SHA-256: 96 bits, so that a billion conversations do not meet by chance.
NAME_CHARS = 24

# About 5,000 tokens: more than titles and classifiers hold, and quickly prefilled again.
SIDE_CHARACTERS = 20_000

_OLD_USER_ID = re.compile(r"^user_.*_account_.*_session_(.+)$", re.DOTALL)


def identify(
    headers: Mapping[str, str], metadata: Any, request: GenerationRequest, chain: Chain, key_name: str
) -> Identity:
    """Who asks, from lower-case `headers`, the body's `metadata` of any shape and the normalised `request` with its
    chain.

    Raises BadRequest that names the header when a label is not printable or too long.
    """
    session = _label(headers, SESSION_HEADER) or _session_of(metadata)
    named = _label(headers, AGENT_HEADER)
    subagent = _label(headers, SUBAGENT_HEADER)
    who = session or named
    kind = _kind(session, subagent, request, chain)
    return Identity(
        key_name=key_name,
        agent=named or session or key_name,
        session=session,
        conversation=_conversation(key_name, who, subagent, chain),
        line=_line(key_name, who, subagent, chain, side=kind is Kind.SIDE),
        kind=kind,
        identified=who is not None,
    )


def level(headers: Mapping[str, str], default: int) -> int:
    """The priority asked for, 0 (first) to 9, else `default`. Raises BadRequest that names the header."""
    text = headers.get(PRIORITY_HEADER, "").strip()
    if not text:
        return default
    if not re.fullmatch("[0-9]", text) or int(text) not in LEVELS:
        raise BadRequest("must be one digit, 0 (most urgent) to 9", field="X-Priority")
    return int(text)


def fingerprint(chain: Chain) -> str:
    """A short name of what all turns of a conversation share: system text and tools."""
    return _name(chain.system, chain.tools)


def _conversation(key_name: str, who: str | None, subagent: str | None, chain: Chain) -> str:
    if who is not None or subagent is not None:
        return _name(key_name, who, subagent, fingerprint(chain))
    # Nobody says who it is: the first message tells conversations with one prefix apart and stays as they grow.
    return _name(key_name, None, None, fingerprint(chain), chain.messages[0])


def _line(key_name: str, who: str | None, subagent: str | None, chain: Chain, *, side: bool) -> str:
    if who is not None or subagent is not None:
        return _name("line", key_name, who, subagent, side)
    return _name("line", key_name, None, None, chain.messages[0])


def _kind(session: str | None, subagent: str | None, request: GenerationRequest, chain: Chain) -> Kind:
    """A side call is a small request without tools in a client's session: a title, a summary, a classifier.

    An agent that has no tools at all names no session, or grows beyond such calls; its cache is worth keeping. A
    compaction carries the main line's system text and tools, so it is main and finds its cache.
    """
    if subagent is not None:
        return Kind.SUBAGENT
    small = chain.characters[-1] <= SIDE_CHARACTERS
    return Kind.SIDE if session is not None and not request.tools and small else Kind.MAIN


def _label(headers: Mapping[str, str], name: str) -> str | None:
    value = _in_utf8(headers.get(name, "")).strip()
    if not is_label(value) and value:
        raise BadRequest(f"must be at most {MAX_LABEL_CHARS} printable characters", field=name.title())
    return value or None


def _in_utf8(value: str) -> str:
    """What was sent as UTF-8, as curl and most clients send a name, of a header that was read as Latin-1."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value


def _session_of(metadata: Any) -> str | None:
    """The session id in `metadata.user_id`: a JSON text, an object, or `user_.._account_.._session_..`."""
    user_id = metadata.get("user_id") if isinstance(metadata, dict) else None
    if isinstance(user_id, str):
        old = _OLD_USER_ID.match(user_id)
        session = old[1] if old else _object(user_id).get("session_id")
    else:
        session = user_id.get("session_id") if isinstance(user_id, dict) else None
    # Metadata may have any shape, so what is no label counts as not said.
    return session if isinstance(session, str) and is_label(session) else None


def _object(text: str) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _name(*parts: Any) -> str:
    # JSON keeps parts apart: ("ab", "c") and ("a", "bc") differ.
    return sha256(orjson.dumps(parts)).hexdigest()[:NAME_CHARS]
