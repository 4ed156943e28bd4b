"""What is wrong with a body, in words a client can act on.

Owns: the translation of pydantic's findings into one BadRequest that names the field.
Never: a type or a bound of its own.
"""

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from infra.errors import BadRequest

# Characters of a client's own words that an error gives back.
MAX_ECHO = 64

_PROBLEMS = {
    "missing": "is required",
    "union_tag_not_found": "is required",
    "string_too_short": "must not be empty",
    "string_pattern_mismatch": "must start with http://, https:// or data:",
    "model_type": "must be a JSON object",
    "model_attributes_type": "must be a JSON object",
    "dict_type": "must be a JSON object",
    "list_type": "must be a list",
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
}


def bad_request(error: ValidationError) -> BadRequest:
    """The first finding as a BadRequest; its field is a path such as `messages[3].content[0].type`."""
    finding = error.errors(include_url=False)[0]
    path = field_path(finding["loc"])
    if finding["type"].startswith("union_tag"):
        path += ".type"
    return BadRequest(_problem(finding, path), field=path)


def field_path(location: tuple[int | str, ...]) -> str:
    """A pydantic location as a client would write it, without the names of union members that stand in it."""
    path, before = "", ("", "")
    for part in location:
        if _is_union_tag(*before):
            before = (before[1], "")
            continue
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
        before = (before[1], "[]" if isinstance(part, int) else part)
    return path


def _is_union_tag(second_last: str, last: str) -> bool:
    # A block's kind follows its number in `content`; a source's kind follows `source` itself.
    return last == "source" or (last == "[]" and second_last == "content")


def _problem(finding: ErrorDetails, path: str) -> str:
    kind = finding["type"]
    if kind == "union_tag_invalid":
        context = finding["ctx"]
        return f"unknown type {context['tag'][:MAX_ECHO]!r}; known are {context['expected_tags']}"
    if kind == "list_type" and path.endswith(("content", "system")):
        return "must be a string or a list of blocks"
    return _PROBLEMS.get(kind) or finding["msg"].replace("Input should", "must").replace("String should", "must")
