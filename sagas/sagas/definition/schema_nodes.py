"""The subschemas of a JSON Schema, by the values that they describe, and references between them.

Everything that reads an input schema goes where the validator goes: `$ref` and `$dynamicRef` are looked up in the same
way, through `$id`, `$anchor` and relative references.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sagas.definition.schema_patterns import may_match

REFERENCES = ("$ref", "$dynamicRef")
DATA_KEYWORDS = ("const", "enum", "default", "examples")
"""Keywords whose values are data, not schemas."""

Path = tuple[str | int, ...]

SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose values are mappings of names to schemas."""

_LISTS = ("allOf", "anyOf", "oneOf")


@dataclass(frozen=True, slots=True)
class SchemaNode:
    """A subschema. ``resolver`` looks up its references; None if the whole schema has none."""

    schema: Any
    resolver: Any

    def child(self, schema: Any) -> SchemaNode:
        """A subschema of this one."""
        if self.resolver is None or not isinstance(schema, dict) or not isinstance(schema.get("$id"), str):
            return SchemaNode(schema, self.resolver)
        return SchemaNode(schema, self.resolver.in_subresource(_resource(schema)))

    def get(self, keyword: str) -> Any:
        """The value of a keyword; None without it."""
        return self.schema.get(keyword) if isinstance(self.schema, dict) else None

    def referenced(self) -> Iterator[SchemaNode]:
        """The schemas that `$ref` and `$dynamicRef` lead to; a reference that leads nowhere is left out."""
        for keyword in REFERENCES:
            if isinstance(reference := self.get(keyword), str) and (target := self.lookup(reference)) is not None:
                yield target

    def lookup(self, reference: str) -> SchemaNode | None:
        """The schema that a reference leads to; None if it leads nowhere, or out of the document."""
        from referencing.exceptions import Unresolvable

        try:
            target = self.resolver.lookup(reference)
        except (Unresolvable, AttributeError, LookupError, TypeError, ValueError):
            return None  # the other errors come from documents that are not JSON Schema
        return SchemaNode(target.contents, target.resolver)

    def all_of(self) -> Iterator[SchemaNode]:
        """The parts of `allOf`."""
        yield from self._listed("allOf")

    def alternatives(self, keyword: str) -> list[SchemaNode]:
        """The parts of `anyOf` or `oneOf`."""
        return list(self._listed(keyword))

    def part(self, keyword: str) -> SchemaNode | None:
        """The schema under a keyword that has one."""
        value = self.get(keyword)
        return self.child(value) if isinstance(value, dict | bool) else None

    def dependent_schemas(self) -> Iterator[tuple[str, SchemaNode]]:
        """The parts of `dependentSchemas`, by the property whose presence applies them."""
        yield from self._mapped("dependentSchemas")

    def properties(self) -> Iterator[tuple[str, SchemaNode]]:
        """The parts of `properties`."""
        yield from self._mapped("properties")

    def patterns(self) -> Iterator[tuple[str, SchemaNode]]:
        """The parts of `patternProperties`."""
        yield from self._mapped("patternProperties")

    def prefix_items(self) -> list[SchemaNode]:
        """The parts of `prefixItems`."""
        return list(self._listed("prefixItems"))

    def covering(self, name: str) -> list[SchemaNode]:
        """The schemas of one property: of `properties` and `patternProperties`, else `additionalProperties`."""
        declared = self.get("properties")
        parts = [self.child(declared[name])] if isinstance(declared, dict) and name in declared else []
        parts += [part for pattern, part in self.patterns() if may_match(pattern, name)]
        additional = self.part("additionalProperties")
        return parts if parts or additional is None else [additional]

    def _listed(self, keyword: str) -> Iterator[SchemaNode]:
        value = self.get(keyword)
        yield from map(self.child, value if isinstance(value, list) else ())

    def _mapped(self, keyword: str) -> Iterator[tuple[str, SchemaNode]]:
        value = self.get(keyword)
        if isinstance(value, dict):
            yield from ((name, self.child(part)) for name, part in value.items())


def root_node(schema: Any) -> SchemaNode:
    """The node of a whole schema."""
    plain = SchemaNode(schema, None)
    if not any(isinstance(part.get(key), str) for part, _ in subschemas(plain) for key in REFERENCES):
        return plain
    from referencing import Registry

    return SchemaNode(schema, Registry().resolver_with_root(_resource(schema)))


def _resource(schema: Any) -> Any:
    # Imported here: most schemas have no reference, and most commands validate no input.
    from referencing.jsonschema import DRAFT202012

    return DRAFT202012.create_resource(schema)


def closure(
    nodes: Iterable[SchemaNode], following: Callable[[SchemaNode], Iterable[SchemaNode]]
) -> Iterator[SchemaNode]:
    """The schemas ``nodes`` and all that ``following`` leads to, each mapping once, in the order of their places."""
    waiting, seen = list(nodes)[::-1], set[int]()
    while waiting:
        node = waiting.pop()
        if isinstance(node.schema, dict) and id(node.schema) not in seen:
            seen.add(id(node.schema))
            yield node
            waiting += list(following(node))[::-1]


def always_applied(node: SchemaNode) -> Iterator[SchemaNode]:
    """The subschemas that apply to every value to which this one applies."""
    yield from node.referenced()
    yield from node.all_of()


def default_nodes(node: SchemaNode) -> list[SchemaNode]:
    """The schemas that give a default to a missing value: this one, else those of its `$ref` and `allOf`."""
    nodes = closure([node], lambda part: () if "default" in part.schema else always_applied(part))
    return [part for part in nodes if "default" in part.schema]


def sometimes_applied(node: SchemaNode) -> Iterator[SchemaNode]:
    """The subschemas that apply only to some of the values to which this one applies."""
    for keyword in ("then", "else"):
        if (part := node.part(keyword)) is not None:
            yield part
    for keyword in ("anyOf", "oneOf"):
        yield from node.alternatives(keyword)
    yield from (part for _, part in node.dependent_schemas())


def same_value(node: SchemaNode) -> Iterator[SchemaNode]:
    """The subschemas that describe the same value, whether or not they apply to a given one."""
    yield from node.referenced()
    for keyword in _LISTS:
        yield from node.alternatives(keyword)
    for keyword in ("if", "then", "else", "not", "contentSchema"):
        if (part := node.part(keyword)) is not None:
            yield part
    yield from (part for _, part in node.dependent_schemas())


def elements(node: SchemaNode, index: int | None = None) -> Iterator[SchemaNode]:
    """The subschemas that may describe elements of a list, or its element ``index``."""
    prefix = node.prefix_items()
    yield from prefix if index is None else prefix[index : index + 1]
    in_prefix = index is not None and index < len(prefix)
    for keyword in ("contains",) if in_prefix else ("items", "contains", "unevaluatedItems"):
        if (part := node.part(keyword)) is not None:
            yield part


def inside(node: SchemaNode, name: str) -> Iterator[SchemaNode]:
    """The subschemas that describe one property."""
    yield from node.covering(name)
    declared = node.get("properties")
    if not (isinstance(declared, dict) and name in declared):
        unevaluated = node.part("unevaluatedProperties")
        yield from () if unevaluated is None else (unevaluated,)


def all_inside(node: SchemaNode) -> Iterator[SchemaNode]:
    """The subschemas that describe values inside a value, and the names of its properties."""
    yield from (part for _, part in node.properties())
    yield from (part for _, part in node.patterns())
    for keyword in ("additionalProperties", "unevaluatedProperties", "propertyNames"):
        if (part := node.part(keyword)) is not None:
            yield part
    yield from elements(node)


def reachable(roots: Iterable[SchemaNode], dynamic: Mapping[str, list[SchemaNode]]) -> Iterator[SchemaNode]:
    """All schemas that may describe the value of one of ``roots``, or a value inside it.

    ``dynamic``: the :func:`dynamic_anchors`; which of several a reference leads to depends on the way to it.
    """
    return closure(roots, lambda node: (*same_value(node), *all_inside(node), *dynamic_targets(node, dynamic)))


def leading_to(root: SchemaNode, wanted: Callable[[SchemaNode], bool]) -> frozenset[int]:
    """The ids of all schemas from which a wanted one can be reached, and of the wanted ones."""
    dynamic = dynamic_anchors(root)
    sources: dict[int, list[int]] = {}
    waiting: list[int] = []
    for node in reachable([root], dynamic):
        if wanted(node):
            waiting.append(id(node.schema))
        for part in (*same_value(node), *all_inside(node), *dynamic_targets(node, dynamic)):
            sources.setdefault(id(part.schema), []).append(id(node.schema))
    leading: set[int] = set()
    while waiting:
        if (key := waiting.pop()) not in leading:
            leading.add(key)
            waiting += sources.get(key, ())
    return frozenset(leading)


def dynamic_anchors(root: SchemaNode) -> dict[str, list[SchemaNode]]:
    """The schemas with `$dynamicAnchor`, by its name."""
    if root.resolver is None:
        return {}
    anchors: dict[str, list[SchemaNode]] = {}
    for node, _ in subschemas(root):
        if isinstance(name := node.get("$dynamicAnchor"), str):
            anchors.setdefault(name, []).append(node)
    return anchors


def dynamic_targets(node: SchemaNode, dynamic: Mapping[str, list[SchemaNode]]) -> list[SchemaNode]:
    """All schemas that a reference to a `$dynamicAnchor` may lead to."""
    names = [str(node.get(keyword)).partition("#")[2] for keyword in REFERENCES] if dynamic else []
    return [target for name in names for target in dynamic.get(name, ())]


def subschemas(root: SchemaNode) -> Iterator[tuple[SchemaNode, Path]]:
    """Every mapping of a schema that is not data, with its path; also those below unknown keywords."""
    waiting: list[tuple[SchemaNode, Path, bool]] = [(root, (), False)]
    while waiting:
        node, path, named = waiting.pop()  # ``named``: the keys are names of the author's, not keywords
        if isinstance(node.schema, list):
            parts = reversed(list(enumerate(node.schema)))
            waiting += [(node.child(part), (*path, index), False) for index, part in parts]
        elif isinstance(node.schema, dict):
            if not named:
                yield node, path
            waiting += [
                (node.child(part), (*path, key), not named and key in SCHEMA_MAPS)
                for key, part in reversed(list(node.schema.items()))
                if named or key not in DATA_KEYWORDS
            ]
