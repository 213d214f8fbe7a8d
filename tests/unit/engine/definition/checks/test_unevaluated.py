"""Random schemas with `unevaluatedProperties` and `unevaluatedItems`: the verdict is that of the specification."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sagas.definition.input_validation import validate_input
from sagas.definition.model import Definition
from sagas.definition.sensitivity import masked
from tests.helpers.sampling import examples

NAMES = st.sampled_from("abc")
VALUES = st.recursive(
    st.booleans() | st.sampled_from(["", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
LEAVES = st.booleans() | st.sampled_from([{}, {"type": "string"}, {"type": "object"}, {"type": "array"}])


def combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some, listed = st.dictionaries(NAMES, inner, max_size=2), st.lists(inner, min_size=1, max_size=2)
    parts = {
        **dict.fromkeys(("properties", "dependentSchemas"), some),
        **dict.fromkeys(("prefixItems", "allOf", "anyOf", "oneOf"), listed),
        **dict.fromkeys(("additionalProperties", "items", "contains", "not", "if", "then", "else"), inner),
        **dict.fromkeys(("unevaluatedProperties", "unevaluatedItems"), inner | st.just(False)),
        "required": st.lists(NAMES, max_size=1),
    }
    return st.lists(st.sampled_from(sorted(parts)), min_size=1, max_size=4, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: parts[name] for name in names})
    )


DEFINED = st.recursive(LEAVES, combined, max_leaves=5)
SCHEMAS = st.recursive(LEAVES | st.just({"$ref": "#/$defs/d"}), combined, max_leaves=8)


@dataclass
class Evaluation:
    """Result of a schema for one value: its validity, and the names and places that the schema has evaluated."""

    valid: bool = True
    evaluated: set[Any] = field(default_factory=set)

    def require(self, condition: bool) -> None:
        self.valid = self.valid and condition

    def take(self, other: Evaluation) -> None:
        """Add the places of a part; a schema that does not fit has evaluated none."""
        if other.valid:
            self.evaluated |= other.evaluated


def evaluate(schema: Any, value: Any, defined: Any) -> Evaluation:
    """Section by section of JSON Schema 2020-12 Core, chapters 10 and 11, without the code of the engine."""
    if isinstance(schema, bool):
        return Evaluation(schema)
    done = Evaluation()

    def apply(parts: Iterable[Any]) -> list[Evaluation]:
        evaluations = [evaluate(part, value, defined) for part in parts]
        for evaluation in evaluations:
            done.take(evaluation)
        return evaluations

    def apply_below(part: Any, places: Iterable[Any]) -> None:
        for place in places:
            done.require(evaluate(part, value[place], defined).valid)
            done.evaluated.add(place)

    kinds = {"string": str, "object": dict, "array": list}
    done.require("type" not in schema or isinstance(value, kinds[schema["type"]]))
    required = [command.valid for command in apply([defined] if "$ref" in schema else [])]
    required += [command.valid for command in apply(schema.get("allOf", []))]
    if "anyOf" in schema:
        required.append(any(command.valid for command in apply(schema["anyOf"])))
    if "oneOf" in schema:
        required.append([command.valid for command in apply(schema["oneOf"])].count(True) == 1)
    if "not" in schema:
        required.append(not evaluate(schema["not"], value, defined).valid)
    if "if" in schema:
        (condition,) = apply([schema["if"]])
        branch = "then" if condition.valid else "else"
        required += [command.valid for command in apply([schema[branch]] if branch in schema else [])]
    if isinstance(value, dict):
        dependent = schema.get("dependentSchemas", {})
        required += [command.valid for command in apply([dependent[name] for name in dependent if name in value])]
        required += [name in value for name in schema.get("required", [])]
        properties = schema.get("properties", {})
        for name in properties:
            apply_below(properties[name], [name] if name in value else [])
        if "additionalProperties" in schema:
            apply_below(schema["additionalProperties"], [name for name in value if name not in properties])
        if "unevaluatedProperties" in schema:
            apply_below(schema["unevaluatedProperties"], [name for name in value if name not in done.evaluated])
    if isinstance(value, list):
        prefix = schema.get("prefixItems", [])
        for at, part in enumerate(prefix[: len(value)]):
            apply_below(part, [at])
        if "items" in schema:
            apply_below(schema["items"], range(len(prefix), len(value)))
        if "contains" in schema:
            fitting = {at for at, item in enumerate(value) if evaluate(schema["contains"], item, defined).valid}
            required.append(bool(fitting))
            done.evaluated |= fitting
        if "unevaluatedItems" in schema:
            apply_below(schema["unevaluatedItems"], [at for at in range(len(value)) if at not in done.evaluated])
    done.require(all(required))
    return done


HUSH = {"type": "string", "x-sensitive": True}


def test_only_what_nothing_else_evaluates_is_masked() -> None:
    """Masked are values where the schema itself says so; behind `allOf` and the like, all that may be meant."""
    by_name = {"properties": {"a": {}}, "unevaluatedProperties": HUSH}
    assert masked(by_name, {"a": "shown", "b": "4111"}) == {"a": "shown", "b": "•••"}
    assert masked({"prefixItems": [{}], "unevaluatedItems": HUSH}, ["shown", "4111"]) == ["shown", "•••"]
    assert masked({"allOf": [{"prefixItems": [{}]}], "unevaluatedItems": HUSH}, ["x", "4111"]) == ["•••", "•••"]


@examples(120, 5_000)
@given(SCHEMAS, DEFINED, VALUES)
def test_the_verdict_is_that_of_the_specification(schema: Any, defined: Any, value: Any) -> None:
    whole = {"$defs": {"d": defined}, "allOf": [schema]}
    is_valid = validate_input(Definition("shop", (), input=whole), value)[1] == []
    assert is_valid is evaluate({"allOf": [schema]}, value, defined).valid
