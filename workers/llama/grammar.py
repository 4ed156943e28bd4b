"""Makes a tool's JSON schema safe for the engine.

Owns: a copy of a schema that holds only what the engine's schema-to-grammar converter takes and takes right. One thing
it refuses costs the whole request a 400, so the copy is made of known keywords; whatever else there is, is left out.
Leaving a keyword out only lets the model say more than the tool allows, which the tool then tells it.
Never: changes the schema that the client sent, or the order of its keys.
"""

import re
from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]

# Bounds. A counted repetition is unrolled by the engine, and inlined references can multiply.
MAX_REPETITIONS = 256
MAX_DEPTH = 24
MAX_NODES = 4000
MAX_INTEGER = 10**15  # the converter writes integers of at most 16 digits
MAX_SCALAR_INTEGER = 2**63

ANY_TYPE = ["string", "number", "boolean", "object", "array", "null"]
TYPES = frozenset({*ANY_TYPE, "integer"})
OBJECT_KEYS = ("title", "description", "properties", "required", "additionalProperties")
FORMATS = frozenset({"date", "time", "date-time", "uuid"})
# Names that the converter reads as keywords wherever they stand.
RESERVED_NAMES = frozenset({"$ref", "$defs", "definitions"})

# Anchored; literals, positive classes without escapes, counts below 100. Anything richer is either refused by the
# converter or lets a quote through that ends the JSON string early.
_ATOM = r"(?:[A-Za-z0-9_/:@ -]|\[[A-Za-z0-9_](?:[A-Za-z0-9_ ./:@]|-[A-Za-z0-9])*-?\])"
SAFE_PATTERN = re.compile(rf"\^(?:{_ATOM}(?:[*+?]|\{{\d{{1,2}}(?:,\d{{1,2}})?\}})?)+\$")
PLAIN_NAME = re.compile(r"[A-Za-z0-9_]+")


def safe_schema(schema: Any) -> Schema:
    """The engine's copy of a tool's input schema: always an object with `properties`. Linear in the schema's size."""
    cleaned = _Cleaner(schema if isinstance(schema, Mapping) else {}).clean(schema, MAX_DEPTH)
    cleaned = _flattened(cleaned)
    if "properties" not in cleaned:
        # Some chat templates walk `properties` and fail where there are none.
        cleaned = {**cleaned, "properties": {}, "additionalProperties": True}
    kept: Schema = {key: cleaned[key] for key in OBJECT_KEYS if key in cleaned}
    return {"type": "object", **kept}


class _Cleaner:
    """One pass over one schema; holds what a pass needs: the root for references, and the bounds."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._open_references: set[str] = set()
        self._nodes_left = MAX_NODES

    def clean(self, schema: Any, depth: int) -> Schema:
        self._nodes_left -= 1
        if not isinstance(schema, Mapping) or not schema or depth <= 0 or self._nodes_left < 0:
            return {"type": list(ANY_TYPE)}
        if "$ref" in schema:
            return self._referenced(schema, depth)
        if isinstance(schema.get("allOf"), list):
            return self._all_of(schema, depth)
        cleaned = _annotations(schema)
        if "properties" not in schema and self._add_choice(schema, cleaned, depth):
            return cleaned
        _add_values(schema, cleaned)
        types = _types(schema, cleaned)
        if types:
            cleaned["type"] = types[0] if len(types) == 1 else types
        if "object" in types:
            self._add_object(schema, cleaned, depth)
        if "array" in types and isinstance(schema.get("items"), Mapping):
            cleaned["items"] = self.clean(schema["items"], depth - 1)
            _add_bounds(schema, cleaned, "minItems", "maxItems", MAX_REPETITIONS)
        if "string" in types:
            _add_string(schema, cleaned)
        if types == ["integer"]:
            _add_bounds(schema, cleaned, "minimum", "maximum", MAX_INTEGER, lowest=-MAX_INTEGER)
        return cleaned

    def _referenced(self, schema: Mapping[str, Any], depth: int) -> Schema:
        """The target in place of the reference. Remote, missing and recursive references allow any value."""
        reference = schema["$ref"]
        target = self._open(reference)
        if target is None:
            return {**_annotations(schema), "type": list(ANY_TYPE)}
        cleaned = self.clean(target, depth - 1)
        self._open_references.discard(reference)
        return {**cleaned, **_annotations(schema)}

    def _open(self, reference: Any) -> Any:
        """What `reference` points at; None when that is nothing or is being written already."""
        target = _pointed_at(self._root, reference)
        if target is None or reference in self._open_references:
            return None
        self._open_references.add(reference)
        return target

    def _all_of(self, schema: Mapping[str, Any], depth: int) -> Schema:
        """All parts as one schema: the converter would make each property of a part a required one."""
        merged: Schema = {key: value for key, value in schema.items() if key != "allOf"}
        opened: list[Any] = []
        for part in schema["allOf"]:
            target = part
            if isinstance(part, Mapping) and "$ref" in part:
                target = self._open(part["$ref"])
                opened += [part["$ref"]] if target is not None else []
            if isinstance(target, Mapping):
                merged = _both(merged, target)
        cleaned = self.clean(merged, depth - 1)
        self._open_references.difference_update(opened)
        return cleaned

    def _add_choice(self, schema: Mapping[str, Any], cleaned: Schema, depth: int) -> bool:
        for keyword in ("anyOf", "oneOf"):
            choices = schema.get(keyword)
            if isinstance(choices, list) and choices:
                cleaned["anyOf"] = [self.clean(choice, depth - 1) for choice in choices]
                return True
        return False

    def _add_object(self, schema: Mapping[str, Any], cleaned: Schema, depth: int) -> None:
        properties = schema.get("properties")
        plain = True
        if isinstance(properties, Mapping):
            kept = {name: value for name, value in properties.items() if name not in RESERVED_NAMES}
            cleaned["properties"] = {name: self.clean(value, depth - 1) for name, value in kept.items()}
            _add_required(schema, cleaned)
            plain = all(PLAIN_NAME.fullmatch(name) for name in kept)
        others = schema.get("additionalProperties", True if "patternProperties" in schema else None)
        if others is False:
            cleaned["additionalProperties"] = False
        elif others is not None and plain:
            # The converter writes the declared names into a character class, unescaped.
            closed = isinstance(others, Mapping) and others
            cleaned["additionalProperties"] = self.clean(others, depth - 1) if closed else True


def _annotations(schema: Mapping[str, Any]) -> Schema:
    """What speaks to the model and not to the grammar."""
    texts = {key: schema[key] for key in ("title", "description") if isinstance(schema.get(key), str)}
    if "default" in schema and _is_scalar(schema["default"]):
        texts["default"] = schema["default"]
    return texts


def _add_values(schema: Mapping[str, Any], cleaned: Schema) -> None:
    if "const" in schema and _is_scalar(schema["const"]):
        cleaned["const"] = schema["const"]
    values = schema.get("enum")
    if isinstance(values, list) and values and all(_is_scalar(value) for value in values):
        cleaned["enum"] = values


def _types(schema: Mapping[str, Any], cleaned: Schema) -> list[str]:
    """The declared types, else those that the keywords speak of, else any. Listed values need none."""
    declared = schema.get("type")
    types = [name for name in (declared if isinstance(declared, list) else [declared]) if isinstance(name, str)]
    types = [name for name in dict.fromkeys(types) if name in TYPES]
    if types or "const" in cleaned or "enum" in cleaned:
        return types
    if "properties" in schema or "patternProperties" in schema:
        return ["object"]
    return ["array"] if isinstance(schema.get("items"), Mapping) else list(ANY_TYPE)


def _add_string(schema: Mapping[str, Any], cleaned: Schema) -> None:
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and len(pattern) <= MAX_REPETITIONS and SAFE_PATTERN.fullmatch(pattern):
        cleaned["pattern"] = pattern
        return
    form = schema.get("format")
    if isinstance(form, str) and form in FORMATS:
        cleaned["format"] = form
        return
    _add_bounds(schema, cleaned, "minLength", "maxLength", MAX_REPETITIONS)


def _add_bounds(
    schema: Mapping[str, Any], cleaned: Schema, low: str, high: str, highest: int, *, lowest: int = 0
) -> None:
    bounds = {key: schema[key] for key in (low, high) if type(schema.get(key)) is int}
    bounds = {key: value for key, value in bounds.items() if lowest <= value <= highest}
    if bounds.get(low, lowest) <= bounds.get(high, highest):
        cleaned.update(bounds)


def _add_required(schema: Mapping[str, Any], cleaned: Schema) -> None:
    required = schema.get("required")
    if isinstance(required, list):
        known = cleaned["properties"]
        names = dict.fromkeys(name for name in required if isinstance(name, str))
        cleaned["required"] = [name for name in names if name in known]


def _both(first: Schema, second: Mapping[str, Any]) -> Schema:
    """One schema for `allOf` [first, second]; where they disagree the first is kept."""
    merged = {**second, **first}
    for key, kind in (("properties", Mapping), ("required", list), ("allOf", list)):
        if isinstance(first.get(key), kind) and isinstance(second.get(key), kind):
            merged[key] = {**second[key], **first[key]} if kind is Mapping else [*first[key], *second[key]]
    return merged


def _flattened(schema: Schema) -> Schema:
    """A choice between objects as one object: all their properties, required where every choice requires it."""
    choices = [choice for choice in map(_flattened, schema.get("anyOf", ())) if "properties" in choice]
    if not choices:
        return schema
    properties: Schema = {}
    for choice in reversed(choices):
        properties = {**choice["properties"], **properties}
    required = [name for name in choices[0].get("required", ()) if all(name in c.get("required", ()) for c in choices)]
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    return {**rest, "type": "object", "properties": properties, "required": required}


def _pointed_at(root: Any, reference: Any) -> Any:
    """The part of `root` that a local JSON pointer (RFC 6901) names, or None."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found = root
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or name not in found:
            return None
        found = found[name]
    return found


def _is_scalar(value: Any) -> bool:
    if isinstance(value, int):
        return abs(value) < MAX_SCALAR_INTEGER
    return value is None or isinstance(value, str | float)
