"""Validates inputs against JSON Schema, in time and memory that neither the schema nor the input can make explode.

jsonschema does the work. Replaced are the keywords that stall it: regular expressions run in RE2 (linear time),
`uniqueItems` compares hashes instead of pairs. So are those that compare numbers, which are exact and of any size: 12.0
is an integer, `enum: [1.10]` takes 1.1, and 0.1 is a multiple of 0.01. Every keyword that is applied to a value costs a
step, so recursive references and repeated alternatives end too. Nothing is ever fetched: a `$ref` leads to a part of
the same schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any

from sagas.definition.schema_formats import fits_format
from sagas.definition.schema_nodes import DATA_KEYWORDS, SchemaNode, leading_to, root_node
from sagas.definition.schema_patterns import matches_pattern
from sagas.errors import UsageError
from sagas.expressions.work_budget import charge
from sagas.text.exact_json import canonical_json, decode_json, encode_json
from sagas.text.exact_numbers import BINARY, comparable, is_exact_double, is_multiple, is_whole

_TEXT_PER_STEP = 32
"""Characters of a value that is compared as a text, for one step."""

_NAMES_PER_STEP = 32
"""Names and schemas that a keyword lists, for one step."""

_PARTS_PER_STEP = 2
"""Parts of a value to which a schema is applied, for one step; what the schema says is counted then."""

_SIZE_PER_STEP = 128
"""Characters, elements or fields of a value that count as one more step of each keyword that is applied to it."""


class CompiledSchema:
    """The validator of one schema. ``root`` is the schema itself, as the validator reads it."""

    def __init__(self, canonical: str) -> None:
        schema = without_dialects(decode_json(canonical))
        self.root = root_node(schema)
        self._is_static = '"$dynamicRef"' not in canonical
        self.has_defaults = '"default"' in canonical
        self.has_integers = '"integer"' in canonical

    def first_errors(self, value: Any, maximum: int, part: SchemaNode | None = None) -> list[Any]:
        """At most ``maximum`` errors of a value, as jsonschema's objects; ``part``: of a part of the schema.

        Raises TooComplex, or UsageError for a reference that leads nowhere.
        """
        from referencing.exceptions import Unresolvable

        node = self.root if part is None else part
        try:
            return list(islice(self._validator.descend(value, node.schema, resolver=node.resolver), maximum))
        except Unresolvable as error:
            raise UsageError(f"the schema of the input has no {error.ref}; correct its `$ref`") from None

    def fits(self, part: SchemaNode, value: Any) -> bool:
        """True if the value is valid for a part of the schema. Raises as :meth:`first_errors`."""
        return not self.first_errors(value, 1, part)

    @cached_property
    def leading_to_defaults(self) -> frozenset[int]:
        """The ids of the schemas in which a default may be found."""
        return leading_to(self.root, lambda node: "default" in node.schema)

    @cached_property
    def leading_to_integers(self) -> frozenset[int]:
        """The ids of the schemas in which one may be found that says `integer`."""
        return leading_to(self.root, wants_integer)

    @cached_property
    def _validator(self) -> Any:
        from referencing import Registry

        return validator_class(self._is_static)(self.root.schema, registry=Registry())


@lru_cache(maxsize=512)
def compile_schema(canonical: str) -> CompiledSchema:
    """The validator of a schema, which is kept; ``canonical``: its :func:`canonical_json`."""
    return CompiledSchema(canonical)


def wants_integer(node: SchemaNode) -> bool:
    """True if the schema itself says `integer`, and not `number` as well."""
    kinds = node.get("type")
    return kinds == "integer" or (isinstance(kinds, list) and "integer" in kinds and "number" not in kinds)


def canonical_schema(schema: Any) -> str:
    """The text of a schema, by which its validator is kept."""
    return canonical_json(schema)


def validator_class(is_static: bool = False) -> Any:
    """jsonschema's class for the dialect 2020-12, with the keywords of this module.

    ``is_static``: it is used for one schema, in which a part means the same wherever it is reached from.
    """
    # Imported here: the import takes a tenth of a second, and most commands validate no input.
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    own = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "uniqueItems": _unique_items,
        **{keyword: _limit(keyword, *limit) for keyword, limit in _LIMITS.items()},
        "type": _type,
        "items": _items,
        "contains": _contains,
        "not": _not,
        "anyOf": _any_of,
        "oneOf": _one_of,
        "additionalProperties": _additional_properties,
        "required": _required,
        "enum": _enum_keyword(),
        "const": _const,
        "multipleOf": _multiple_of,
        BINARY: _binary,
        "format": _format,
    }
    keywords = {**Draft202012Validator.VALIDATORS, **own}
    types = Draft202012Validator.TYPE_CHECKER.redefine_many(
        {"integer": lambda _, value: is_whole(value), "number": lambda _, value: _is_number(value)}
    )
    extended: Any = extend(
        Draft202012Validator, {name: _charged(name, call) for name, call in keywords.items()}, type_checker=types
    )
    extended.descend = _fast_descend() if is_static else _without_repr(extended.descend)
    return extended


def _without_repr(descend: Callable[..., Any]) -> Callable[..., Any]:
    def descend_without_repr(self: Any, instance: Any, schema: Any, *place: Any, **places: Any) -> Any:
        if schema is not False:
            return descend(self, instance, schema, *place, **places)
        return iter([_excluded(instance, *place, **places)])

    return descend_without_repr


def _fast_descend() -> Callable[..., Any]:
    """jsonschema's `descend` with a validator for each part of the schema that is made once, and its references, which
    are resolved once: a third of the time.
    """
    from referencing.jsonschema import DRAFT202012

    parts: dict[int, tuple[Any, list[tuple[str, Any, Callable[..., Any]]]]] = {}
    targets: dict[int, Any] = {}

    def part_of(self: Any, schema: Any, resolver: Any) -> Any:
        if resolver is None:
            resolver = self._resolver.in_subresource(DRAFT202012.create_resource(schema))
        known = [(name, value, apply) for name, value in schema.items() if (apply := self.VALIDATORS.get(name))]
        part = parts[id(schema)] = (self.evolve(schema=schema, _resolver=resolver), known)
        return part

    def follow(evolved: Any, reference: Any, instance: Any, schema: Any) -> Iterator[Any]:
        target = targets.get(id(schema))
        if target is None:
            target = targets[id(schema)] = evolved._resolver.lookup(reference)
        return descend(evolved, instance, target.contents, resolver=target.resolver)

    follow = _charged("$ref", follow)

    def descend(
        self: Any, instance: Any, schema: Any, path: Any = None, schema_path: Any = None, resolver: Any = None
    ) -> Iterator[Any]:
        if schema is True:
            return
        if schema is False:
            yield _excluded(instance, path, schema_path)
            return
        evolved, known = parts.get(id(schema)) or part_of(self, schema, resolver)
        for name, value, apply in known:
            if name == "$ref":
                apply = follow
            for error in apply(evolved, value, instance, schema) or ():
                error._set(
                    validator=name,
                    validator_value=value,
                    instance=instance,
                    schema=schema,
                    type_checker=evolved.TYPE_CHECKER,
                )
                if name not in ("if", "$ref"):
                    error.schema_path.appendleft(name)
                if path is not None:
                    error.path.appendleft(path)
                if schema_path is not None:
                    error.schema_path.appendleft(schema_path)
                yield error

    return descend


def without_dialects(schema: Any) -> Any:
    """The schema without `$schema`, by which jsonschema would choose a validator of its own for a part."""
    if isinstance(schema, list):
        return [without_dialects(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value if key in DATA_KEYWORDS else without_dialects(value)
        for key, value in schema.items()
        if key != "$schema" or not isinstance(value, str)
    }


def _charged(name: str, apply: Callable[..., Any]) -> Callable[..., Any]:
    quadratic = name.startswith("unevaluated")
    own_steps = 4 if name in ("$ref", "$dynamicRef") else 1  # a reference is resolved each time

    def charged(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        size = len(instance) if isinstance(instance, dict | list | str) else 0
        names = len(value) if name != "enum" and isinstance(value, dict | list) else 0
        charge(own_steps + size // _SIZE_PER_STEP + names // _NAMES_PER_STEP)
        if quadratic and size:  # and the message in jsonschema quotes the values
            charge(size * size // 100 + len(encode_json(instance)) // _TEXT_PER_STEP)
        return apply(validator, value, instance, schema)

    return charged


def _error(keyword: str) -> Any:
    from jsonschema import ValidationError

    return ValidationError(f"does not fit `{keyword}`")  # sagas.definition.schema_messages writes the sentence


def _excluded(
    instance: Any, path: str | int | None = None, schema_path: str | int | None = None, resolver: Any = None
) -> Any:
    """The error of the schema `false`."""
    from jsonschema import ValidationError

    charge(2)
    options: dict[str, Any] = {"validator": None, "validator_value": None, "instance": instance, "schema": False}
    return ValidationError(
        "nothing is allowed",
        path=() if path is None else (path,),
        schema_path=() if schema_path is None else (schema_path,),
        **options,
    )


_LIMITS: Mapping[str, tuple[tuple[type, ...], Callable[[Any, Any], bool]]] = {
    "minimum": ((int, Decimal), lambda value, limit: value >= limit),
    "maximum": ((int, Decimal), lambda value, limit: value <= limit),
    "exclusiveMinimum": ((int, Decimal), lambda value, limit: value > limit),
    "exclusiveMaximum": ((int, Decimal), lambda value, limit: value < limit),
    "minLength": ((str,), lambda value, limit: len(value) >= limit),
    "maxLength": ((str,), lambda value, limit: len(value) <= limit),
    "minItems": ((list,), lambda value, limit: len(value) >= limit),
    "maxItems": ((list,), lambda value, limit: len(value) <= limit),
    "minProperties": ((dict,), lambda value, limit: len(value) >= limit),
    "maxProperties": ((dict,), lambda value, limit: len(value) <= limit),
}
"""Keywords whose messages in jsonschema quote the value, which may be large: the types they apply to, and the rule."""


def _limit(keyword: str, types: tuple[type, ...], fits: Callable[[Any, Any], bool]) -> Callable[..., Any]:
    def check(validator: Any, limit: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if isinstance(instance, types) and not isinstance(instance, bool) and not fits(instance, limit):
            yield _error(keyword)

    return check


def _type(validator: Any, kinds: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if not any(validator.is_type(instance, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)):
        yield _error("type")


def _items(validator: Any, items: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if not isinstance(instance, list):
        return
    charge(len(instance) // _PARTS_PER_STEP)
    prefix = len(schema.get("prefixItems", ()))
    if items is False and len(instance) > prefix:
        yield _error("items")
    elif items is not False:
        for index in range(prefix, len(instance)):
            yield from validator.descend(instance[index], items, path=index)


def _contains(validator: Any, part: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if not isinstance(instance, list):
        return
    from jsonschema import ValidationError

    least, most = schema.get("minContains", 1), schema.get("maxContains", len(instance))
    fitting = 0
    charge(len(instance) // _PARTS_PER_STEP)
    for item in instance:
        if _fits(validator, part, item):
            fitting += 1
            if fitting > most:
                yield ValidationError("too many", validator="maxContains", validator_value=most)
                return
    if 0 < fitting < least:
        yield ValidationError("too few", validator="minContains", validator_value=least)
    elif fitting < least:
        yield _error("contains")


def _not(validator: Any, part: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if _fits(validator, part, instance):
        yield _error("not")


def _any_of(validator: Any, alternatives: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if not any(_fits(validator, alternative, instance) for alternative in alternatives):
        yield _of_alternatives("anyOf", validator, alternatives, instance)


def _one_of(validator: Any, alternatives: Any, instance: Any, schema: Any) -> Iterator[Any]:
    fitting = list(islice((part for part in alternatives if _fits(validator, part, instance)), 2))
    if len(fitting) == 2:
        yield _error("oneOf")
    elif not fitting:
        yield _of_alternatives("oneOf", validator, alternatives, instance)


def _fits(validator: Any, schema: Any, instance: Any) -> bool:
    charge(2)  # a validator of its own, and the error of one that does not fit
    return next(validator.descend(instance, schema), None) is None


ALTERNATIVES = "alternatives"
"""The attribute of an error with a function that returns the errors of the alternatives."""
_MAX_ALTERNATIVE_ERRORS = 20
"""Errors of one alternative that a message may need."""


def _of_alternatives(keyword: str, validator: Any, alternatives: Any, instance: Any) -> Any:
    """The error of a value that fits no alternative. Why it fits none of them is found out if somebody asks: values
    inside of others, and alternatives inside of others, would collect errors without end.
    """
    error = _error(keyword)

    def why() -> list[Any]:
        errors: list[Any] = []
        for index, schema in enumerate(alternatives):
            errors += islice(validator.descend(instance, schema, schema_path=index), _MAX_ALTERNATIVE_ERRORS)
        return errors

    setattr(error, ALTERNATIVES, why)
    return error


def _is_number(value: Any) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    if isinstance(instance, str) and not matches_pattern(pattern, instance):
        yield _error("pattern")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if not isinstance(instance, dict):
        return
    for pattern, inner in patterns.items():
        for name, value in instance.items():
            if matches_pattern(pattern, name):
                yield from validator.descend(value, inner, path=name, schema_path=pattern)


def _required(validator: Any, names: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if isinstance(instance, dict) and any(name not in instance for name in names):
        yield _error("required")  # one for all missing names


def _additional_properties(validator: Any, rest: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if not isinstance(instance, dict):
        return
    extra = additional_names(schema, instance)
    if rest is False and extra:
        yield _error("additionalProperties")
    elif isinstance(rest, Mapping):
        charge(len(extra) // _PARTS_PER_STEP)
        for name in extra:
            yield from validator.descend(instance[name], rest, path=name)


def additional_names(schema: Mapping[str, Any], instance: Mapping[str, Any]) -> list[str]:
    """The names to which `additionalProperties` applies."""
    charge(len(instance) // 8)
    declared, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    return [
        name
        for name in instance
        if name not in declared and not any(matches_pattern(pattern, name) for pattern in patterns)
    ]


def _unique_items(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if not wanted or not isinstance(instance, list):
        return
    seen: set[str] = set()
    for item in instance:
        text = _comparable_text(item)
        if text in seen:
            yield _error("uniqueItems")
            return
        seen.add(text)


def _multiple_of(validator: Any, divisor: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if _is_number(instance) and not is_multiple(instance, divisor):
        yield _error("multipleOf")


def _binary(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if wanted is True and _is_number(instance) and not is_exact_double(instance):
        yield _error(BINARY)


def _format(validator: Any, name: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if isinstance(instance, str) and isinstance(name, str) and not fits_format(name, instance):
        yield _error("format")


def _const(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if _comparable_text(instance) != _comparable_text(wanted):
        yield _error("const")


def _enum_keyword() -> Callable[..., Any]:
    """`enum` by lookup; the texts of each list are kept as long as the schema."""
    texts: dict[int, frozenset[str]] = {}

    def enum(validator: Any, listed: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if id(listed) not in texts:
            texts[id(listed)] = frozenset(map(_comparable_text, listed))
        if _comparable_text(instance) not in texts[id(listed)]:
            yield _error("enum")

    return enum


def _comparable_text(value: Any) -> str:
    text = canonical_json(comparable(value))
    charge(1 + len(text) // _TEXT_PER_STEP)
    return text
