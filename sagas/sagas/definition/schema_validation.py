"""Validates inputs against JSON Schema, in time and memory that neither the schema nor the input can make explode.

Compiled functions decide (:mod:`sagas.definition.schema_verdicts`); for a value that does not fit, jsonschema finds the
errors, and skips what fits. Its keywords that stall or compare numbers are replaced: regular expressions run in RE2
(linear time), `uniqueItems` compares hashes instead of pairs, and numbers are exact and of any size: 12.0 is an
integer, `enum: [1.10]` takes 1.1, and 0.1 is a multiple of 0.01. Every keyword that is applied to a value costs steps,
so recursive references and repeated alternatives end too. Nothing is ever fetched: a `$ref` leads to a part of the same
schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any

from sagas.definition.json_types import has_type
from sagas.definition.schema_formats import fits_format
from sagas.definition.schema_keywords import LIMITS, comparable_text
from sagas.definition.schema_nodes import DATA_KEYWORDS, SchemaNode, default_nodes, leading_to, root_node
from sagas.definition.schema_patterns import matches_pattern
from sagas.definition.schema_verdicts import SchemaVerdicts
from sagas.errors import UsageError
from sagas.expressions.work_budget import charge
from sagas.text.exact_json import canonical_json, decode_json, encode_json
from sagas.text.exact_numbers import BINARY, is_exact_double

_NAMES_PER_STEP = 32
"""Names and schemas that a keyword lists, for one step."""

_LIBRARY_STEPS = 6
"""Steps of each keyword that jsonschema applies to a value."""

_SIZE_PER_STEP = 128
"""Characters, elements or fields of a value that count as one more step of each keyword that is applied to it."""


class CompiledSchema:
    """The validator of one schema. ``root`` is the schema itself, as the validator reads it."""

    def __init__(self, canonical: str) -> None:
        schema = without_dialects(decode_json(canonical))
        self.root = root_node(schema)
        self._verdicts = None if '"$dynamicRef"' in canonical else SchemaVerdicts()
        self.shapes_of_defaults: dict[Any, Any] = {}
        self.shapes_of_integers: dict[Any, Any] = {}
        self.has_defaults = '"default"' in canonical
        self.has_integers = '"integer"' in canonical

    def first_errors(self, value: Any, maximum: int, part: SchemaNode | None = None) -> list[Any]:
        """At most ``maximum`` errors of a value, as jsonschema's objects; ``part``: the part of the schema that is
        checked.

        Raises TooComplex, or UsageError for a reference that leads nowhere.
        """
        node = self.root if part is None else part
        with _errors_of_libraries():
            if self._verdicts is not None and self._verdicts.of(node)(value):
                return []
            return list(islice(self._validator.descend(value, node.schema, resolver=node.resolver), maximum))

    def fits(self, part: SchemaNode, value: Any) -> bool:
        """True if the value is valid for a part of the schema. Raises as :meth:`first_errors`."""
        if self._verdicts is None:
            return not self.first_errors(value, 1, part)
        with _errors_of_libraries():
            return self._verdicts.of(part)(value)

    @cached_property
    def leading_to_defaults(self) -> frozenset[int]:
        """The ids of the schemas by which a default may be filled in."""
        return leading_to(self.root, lambda node: any(default_nodes(part) for _, part in node.properties()))

    @cached_property
    def leading_to_integers(self) -> frozenset[int]:
        """The ids of the schemas in which one may be found that says `integer`."""
        return leading_to(self.root, wants_integer)

    @cached_property
    def _validator(self) -> Any:
        from referencing import Registry

        return validator_class(self._verdicts)(self.root.schema, registry=Registry())


@contextmanager
def _errors_of_libraries() -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        # Imported here: most values fit, and are checked without these libraries.
        from referencing.exceptions import Unresolvable

        if isinstance(error, Unresolvable):
            raise UsageError(f"the schema of the input has no {error.ref}; correct its `$ref`") from None
        # The maps of referencing and jsonschema (rpds) panic where a comparison fails: at the limit of recursion.
        if type(error).__module__ == "pyo3_runtime":
            raise RecursionError from None
        raise


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


def validator_class(verdicts: SchemaVerdicts | None = None) -> Any:
    """jsonschema's class for the dialect 2020-12, with the keywords of this module.

    ``verdicts``: those of the only schema for which it is used, if there are any.
    """
    # Imported here: the import takes a tenth of a second, and most commands validate no input.
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    own = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "uniqueItems": _unique_items,
        **{keyword: _limit(keyword, *limit) for keyword, limit in LIMITS.items()},
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
        BINARY: _binary,
        "format": _format,
    }
    if verdicts is not None:
        own |= {keyword: _by_verdict(keyword, verdicts) for keyword in ("unevaluatedItems", "unevaluatedProperties")}
    keywords = {**Draft202012Validator.VALIDATORS, **own}
    extended: Any = extend(Draft202012Validator, {name: _charged(name, call) for name, call in keywords.items()})
    extended.is_type = lambda _, value, kind: has_type(value, kind)
    if verdicts is None:
        extended.descend = _without_repr(extended.descend)
        extended.fits = lambda self, value, schema: next(self.descend(value, schema), None) is None
    else:
        extended.descend = _fast_descend()
        extended.fits = _by_verdicts(verdicts)
    return extended


def _by_verdicts(verdicts: SchemaVerdicts) -> Callable[..., bool]:
    def fits(self: Any, value: Any, schema: Any) -> bool:
        charge()
        return verdicts.of(SchemaNode(self.schema, self._resolver).child(schema))(value)

    return fits


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
        keywords = [(name, value, apply) for name, value in schema.items() if (apply := self.VALIDATORS.get(name))]
        part = parts[id(schema)] = (self.evolve(schema=schema, _resolver=resolver), keywords)
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
        evolved, keywords = parts.get(id(schema)) or part_of(self, schema, resolver)
        for name, value, apply in keywords:
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

    def charged(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        size = len(instance) if isinstance(instance, dict | list | str) else 0
        names = len(value) if name != "enum" and isinstance(value, dict | list) else 0
        charge(_LIBRARY_STEPS + size // _SIZE_PER_STEP + names // _NAMES_PER_STEP)
        if quadratic and size:  # and the message in jsonschema quotes the values
            charge(size * size // 100 + len(encode_json(instance)) // _SIZE_PER_STEP)
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


def _limit(keyword: str, types: frozenset[type], fits: Callable[[Any, Any], bool]) -> Callable[..., Any]:
    """A keyword whose message in jsonschema quotes the value, which may be large."""

    def check(validator: Any, limit: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if isinstance(instance, tuple(types)) and not isinstance(instance, bool) and not fits(instance, limit):
            yield _error(keyword)

    return check


def _by_verdict(keyword: str, verdicts: SchemaVerdicts) -> Callable[..., Any]:
    def check(validator: Any, part: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if not verdicts.by_keyword(keyword, SchemaNode(schema, validator._resolver), instance):
            yield _error(keyword)

    return check


def _type(validator: Any, kinds: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if not any(validator.is_type(instance, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)):
        yield _error("type")


def _items(validator: Any, items: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if not isinstance(instance, list):
        return
    prefix = len(schema.get("prefixItems", ()))
    if items is False and len(instance) > prefix:
        yield _error("items")
    elif items is not False:
        for index in range(prefix, len(instance)):
            if not validator.fits(instance[index], items):
                yield from validator.descend(instance[index], items, path=index)


def _contains(validator: Any, part: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if not isinstance(instance, list):
        return
    from jsonschema import ValidationError

    least, most = schema.get("minContains", 1), schema.get("maxContains", len(instance))
    fitting = 0
    for item in instance:
        if validator.fits(item, part):
            fitting += 1
            if fitting > most:
                yield ValidationError("too many", validator="maxContains", validator_value=most)
                return
    if 0 < fitting < least:
        yield ValidationError("too few", validator="minContains", validator_value=least)
    elif fitting < least:
        yield _error("contains")


def _not(validator: Any, part: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if validator.fits(instance, part):
        yield _error("not")


def _any_of(validator: Any, alternatives: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if not any(validator.fits(instance, alternative) for alternative in alternatives):
        yield _of_alternatives("anyOf", validator, alternatives, instance)


def _one_of(validator: Any, alternatives: Any, instance: Any, schema: Any) -> Iterator[Any]:
    fitting = list(islice((part for part in alternatives if validator.fits(instance, part)), 2))
    if len(fitting) == 2:
        yield _error("oneOf")
    elif not fitting:
        yield _of_alternatives("oneOf", validator, alternatives, instance)


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


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    if isinstance(instance, str) and not matches_pattern(pattern, instance):
        yield _error("pattern")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if not isinstance(instance, dict):
        return
    for pattern, inner in patterns.items():
        for name, value in instance.items():
            if matches_pattern(pattern, name) and not validator.fits(value, inner):
                yield from validator.descend(value, inner, path=name, schema_path=pattern)


def _required(validator: Any, names: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if isinstance(instance, dict) and any(name not in instance for name in names):
        yield _error("required")  # one for all missing names


def _additional_properties(validator: Any, part: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if not isinstance(instance, dict):
        return
    extra = additional_names(schema, instance)
    if part is False and extra:
        yield _error("additionalProperties")
    elif isinstance(part, Mapping):
        for name in extra:
            if not validator.fits(instance[name], part):
                yield from validator.descend(instance[name], part, path=name)


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
    if wanted and isinstance(instance, list):
        texts = list(map(comparable_text, instance))
        if len(set(texts)) < len(texts):
            yield _error("uniqueItems")


def _binary(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if wanted is True and has_type(instance, "number") and not is_exact_double(instance):
        yield _error(BINARY)


def _format(validator: Any, name: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if isinstance(instance, str) and isinstance(name, str) and not fits_format(name, instance):
        yield _error("format")


def _const(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if comparable_text(instance) != comparable_text(wanted):
        yield _error("const")


def _enum_keyword() -> Callable[..., Any]:
    """`enum` by lookup; the texts of each list are kept as long as the schema."""
    texts: dict[int, frozenset[str]] = {}

    def enum(validator: Any, listed: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if id(listed) not in texts:
            texts[id(listed)] = frozenset(map(comparable_text, listed))
        if comparable_text(instance) not in texts[id(listed)]:
            yield _error("enum")

    return enum
