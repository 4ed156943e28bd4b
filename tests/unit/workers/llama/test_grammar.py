"""The engine's copy of a schema holds only what its grammar takes."""

import itertools
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.llama.grammar import ANY_TYPE, MAX_NODES, TYPES, safe_schema

pytestmark = pytest.mark.unit

KEYWORDS = {
    *("type", "title", "description", "default", "properties", "required", "additionalProperties", "items", "anyOf"),
    *("enum", "const", "pattern", "format", "minLength", "maxLength", "minItems", "maxItems", "minimum", "maximum"),
}

names = st.sampled_from(["a", "b", "$ref", "$defs", "x-y", ""])
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4)
leaves = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from([*TYPES, "file", 5, ["string", "null"], []]),
        "enum": st.lists(scalars | st.just({"$ref": "x"}), max_size=3) | st.just(5),
        "const": scalars | st.just({"$ref": "x"}),
        "default": scalars | st.just([1]),
        "pattern": st.sampled_from(["^a+$", "x", "^\\d$", 5]),
        "format": st.sampled_from(["date", "uri", 5, [], {}]),
        "minimum": scalars,
        "maximum": scalars,
        "minLength": scalars,
        "maxLength": scalars,
        "not": st.just({"type": "string"}),
        "$ref": st.sampled_from(["#", "#/properties/a", "#/$defs/a", "http://x/y", 5]),
    },
)
schemas = st.recursive(
    leaves | st.booleans() | st.none(),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["object", "array"]),
            "properties": st.dictionaries(names, inner, max_size=3) | st.just(5),
            "items": inner | st.lists(inner, max_size=2),
            "anyOf": st.lists(inner, max_size=2),
            "oneOf": st.lists(inner, max_size=2),
            "allOf": st.lists(inner, max_size=2),
            "additionalProperties": inner,
            "patternProperties": st.dictionaries(names, inner, max_size=1),
            "required": st.lists(names, max_size=2) | st.just("a"),
            "$defs": st.dictionaries(names, inner, max_size=1),
        },
    ),
    max_leaves=10,
)


def walk(schema: Any) -> list[dict[str, Any]]:
    """Every schema inside a safe one, itself first. Fails on what cannot be one."""
    assert isinstance(schema, dict)
    inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", [])]
    if "items" in schema:
        inner.append(schema["items"])
    if isinstance(schema.get("additionalProperties"), dict):
        inner.append(schema["additionalProperties"])
    return [schema, *itertools.chain.from_iterable(map(walk, inner))]


def of_property(schema: Any) -> dict[str, Any]:
    safe: dict[str, Any] = safe_schema({"type": "object", "properties": {"a": schema}})["properties"]["a"]
    return safe


@given(schemas)
def test_any_schema_becomes_an_object_made_of_known_keywords(schema: Any) -> None:
    safe = safe_schema(schema)

    assert safe["type"] == "object"
    assert isinstance(safe["properties"], dict)
    for part in walk(safe):
        assert part
        assert set(part) <= KEYWORDS
        assert {"type", "enum", "const", "anyOf"} & set(part)
        assert set(part.get("required", ())) <= set(part.get("properties", ()))


WRONG_VALUES: list[Any] = [
    None,
    True,
    5,
    -1.5,
    "",
    "x",
    [],
    {},
    [[]],
    [{}],
    [5],
    {"a": []},
    {"a": {"b": [{}]}},
    ["string", {}],
]
EVERY_KEYWORD = sorted({*KEYWORDS, "oneOf", "allOf", "patternProperties", "$ref", "$defs", "definitions", "not"})


@pytest.mark.parametrize("keyword", EVERY_KEYWORD)
@pytest.mark.parametrize("of_type", [{}, {"type": "string"}, {"type": "integer"}, {"type": "array", "items": {}}])
def test_a_keyword_may_hold_anything_wrong(keyword: str, of_type: dict[str, Any]) -> None:
    for wrong in WRONG_VALUES:
        schema = {**of_type, keyword: wrong}
        for safe in (safe_schema(schema), safe_schema({"properties": {"a": schema}}), safe_schema({"allOf": [schema]})):
            assert safe_schema(safe) == safe


@given(schemas)
def test_a_safe_schema_stays_as_it_is(schema: Any) -> None:
    safe = safe_schema(schema)

    assert safe_schema(safe) == safe


@given(st.dictionaries(st.text(max_size=5), st.just({"type": "string"})))
def test_property_names_keep_their_order(properties: dict[str, Any]) -> None:
    kept = [name for name in properties if name not in ("$ref", "$defs", "definitions")]

    assert list(safe_schema({"properties": properties})["properties"]) == kept


@pytest.mark.parametrize("schema", [None, True, {}, {"type": "string"}, [], {"$ref": "#"}, {"properties": 5}])
def test_what_is_no_object_schema_takes_any_arguments(schema: Any) -> None:
    assert safe_schema(schema) == {"type": "object", "properties": {}, "additionalProperties": True}


def test_a_tool_without_arguments_stays_one() -> None:
    assert safe_schema({"type": "object", "properties": {}}) == {"type": "object", "properties": {}}


@pytest.mark.parametrize("schema", [True, {}, {"not": {"type": "string"}}, {"type": "file"}, {"type": []}])
def test_a_property_without_a_usable_type_takes_any_value(schema: Any) -> None:
    assert of_property(schema) == {"type": ANY_TYPE}


@pytest.mark.parametrize("kept", ["^[a-z0-9_-]+$", "^v[0-9]{1,2}$", "^ab?c*$", "^[A-Z]{2}-[0-9]+$"])
def test_simple_patterns_are_kept(kept: str) -> None:
    assert of_property({"type": "string", "pattern": kept}) == {"type": "string", "pattern": kept}


@pytest.mark.parametrize(
    "left_out", ["", "a", "^\\d+$", "^.*$", '^[^"]*$', "^(a|b)$", "^(?!x)$", "^[a-z]{1,999}$", "^a++$", "^$"]
)
def test_other_patterns_are_left_out(left_out: str) -> None:
    assert of_property({"type": "string", "pattern": left_out}) == {"type": "string"}


def test_lengths_are_kept_while_small_and_left_out_when_huge() -> None:
    assert of_property({"type": "string", "minLength": 1, "maxLength": 200}) == {
        "type": "string",
        "minLength": 1,
        "maxLength": 200,
    }
    assert of_property({"type": "string", "minLength": 1, "maxLength": 10**9}) == {"type": "string", "minLength": 1}
    assert of_property({"type": "string", "minLength": 9, "maxLength": 2}) == {"type": "string"}


def test_a_local_reference_is_put_in_place_with_its_own_description() -> None:
    schema = {
        "properties": {"a": {"$ref": "#/$defs/x~1y", "description": "mine"}},
        "$defs": {"x/y": {"type": "string", "description": "theirs"}},
    }

    assert safe_schema(schema)["properties"]["a"] == {"type": "string", "description": "mine"}


def test_a_recursive_reference_ends_in_any_value() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}
    safe = safe_schema({"properties": {"head": {"$ref": "#/$defs/node"}}, "$defs": {"node": node}})

    assert safe["properties"]["head"]["properties"]["next"] == {"type": ANY_TYPE}


def test_references_that_multiply_are_bounded() -> None:
    both = {f"d{n}": {"properties": {x: {"$ref": f"#/$defs/d{n + 1}"} for x in "ab"}} for n in range(60)}

    assert len(walk(safe_schema({"$ref": "#/$defs/d0", "$defs": both}))) <= 2 * MAX_NODES


def test_a_choice_of_objects_at_the_top_becomes_one_object() -> None:
    one = {"type": "object", "properties": {"k": {"const": 1}, "a": {"type": "string"}}, "required": ["k", "a"]}
    two = {"type": "object", "properties": {"k": {"const": 2}}, "required": ["k"]}

    safe = safe_schema({"oneOf": [one, two]})

    assert list(safe["properties"]) == ["k", "a"]
    assert safe["required"] == ["k"]


def test_all_of_joins_its_parts_without_making_everything_required() -> None:
    base = {"properties": {"a": {"type": "string"}}, "required": ["a"]}
    more = {"properties": {"b": {"type": "string"}}}

    safe = safe_schema({"type": "object", "allOf": [base, more]})

    assert set(safe["properties"]) == {"a", "b"}
    assert safe["required"] == ["a"]


def test_a_choice_beside_properties_is_left_out_so_that_the_properties_count() -> None:
    schema = {"properties": {"a": {"type": "string"}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}

    assert safe_schema(schema) == {"type": "object", "properties": {"a": {"type": "string"}}}


def test_a_nullable_value_stays_a_choice() -> None:
    assert of_property({"anyOf": [{"type": "string"}, {"type": "null"}], "description": "d"}) == {
        "description": "d",
        "anyOf": [{"type": "string"}, {"type": "null"}],
    }


def test_the_clients_schema_is_not_touched() -> None:
    schema = {"properties": {"a": {"$ref": "#/$defs/x", "minLength": 10**9}}, "$defs": {"x": {"type": "string"}}}
    before = orjson.dumps(schema)

    safe_schema(schema)

    assert orjson.dumps(schema) == before
