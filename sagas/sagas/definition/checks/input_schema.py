"""Checks that `input` is a JSON Schema of which every keyword does what its author expects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sagas.definition.checks.impossible_schemas import impossible_parts
from sagas.definition.diagnostics import Report, suggestion_help
from sagas.definition.input_completion import same_default
from sagas.definition.parser.draft import SagaDraft
from sagas.definition.parser.yaml_nodes import YamlNode
from sagas.definition.schema_formats import FORMATS
from sagas.definition.schema_nodes import (
    REFERENCES,
    Path,
    SchemaNode,
    always_applied,
    closure,
    default_nodes,
    dynamic_anchors,
    dynamic_targets,
    reachable,
    root_node,
    sometimes_applied,
    subschemas,
)
from sagas.definition.schema_patterns import is_other_dialect, pattern_problem
from sagas.definition.schema_validation import without_dialects
from sagas.definition.schema_words import keyword_problems, schema_help
from sagas.definition.sensitivity import SENSITIVE_KEYWORD
from sagas.text.exact_numbers import comparable
from sagas.text.plain_schemas import is_certainly_valid

Problem = tuple[str, Path, str] | tuple[str, Path, str, str]
"""A finding: its code, path and message, and its help if that differs from the help of the code."""


def check_input_schema(draft: SagaDraft, report: Report) -> None:
    """Report an input schema that is not a valid JSON Schema, and keywords of it without effect."""
    if "input" not in draft.root:
        return
    node = draft.root.node_of("input")
    schema = node.to_json()
    if not is_certainly_valid(schema):
        invalid = _schema_error(schema)
        if invalid is not None:
            report.add("SAGA112", _node_at(node, invalid[0]), invalid[1], schema_help(schema, invalid[0]))
            return
    for code, path, message, *help in schema_problems(schema):
        report.add(code, _node_at(node, path), message, *help)


def _schema_error(schema: Any) -> tuple[Path, str] | None:
    """The place where the schema is not valid, and why.

    Common schemas are recognised without jsonschema, whose import alone takes a tenth of a second.
    """
    from jsonschema.exceptions import best_match

    from sagas.definition.schema_messages import closest_error, sentence
    from sagas.definition.schema_validation import validator_class

    validator = validator_class()
    # Parts of the schema of schemas are read by jsonschema's own class, to which 2.0 is not an integer.
    error = best_match(validator(validator.META_SCHEMA).iter_errors(comparable(schema)))
    if error is None:
        return None
    error = closest_error(error)
    path = tuple(error.absolute_path)
    where = ".".join(map(str, path))
    return path, f"`input{'.' + where if where else ''}` is not JSON Schema: {sentence(error)}"


def schema_problems(schema: Any) -> Iterator[Problem]:
    """Return what the engine refuses in a valid schema, and what has no effect in it."""
    schema = without_dialects(schema)
    root = root_node(schema)
    parts = [(node, path) for node, path in subschemas(root) if not any(str(key).startswith("x-") for key in path)]
    yield from _reference_problems(parts)
    yield from _pattern_problems(parts)
    dynamic = dynamic_anchors(root)
    reached = {id(node.schema) for node in reachable([root], dynamic)}
    used = {path[:end] for node, path in parts if id(node.schema) in reached for end in range(len(path) + 1)}
    parts = [(node, path) for node, path in parts if not _in_unused_definition(path, used)]
    reached_parts = [(node, path) for node, path in parts if id(node.schema) in reached]
    yield from _format_problems(iter(reached_parts))
    yield from _sensitivity_problems(parts, reached)
    yield from keyword_problems(reached_parts)
    yield from _default_problems(parts, root, dynamic)
    for impossible in impossible_parts(reached_parts, schema, dynamic):
        yield "SAGA124", impossible.place, impossible.message


def _in_unused_definition(path: Path, used: set[Path]) -> bool:
    """True below an entry of `$defs` that no `$ref` leads into."""
    return any(key in ("$defs", "definitions") and path[: index + 2] not in used for index, key in enumerate(path[:-1]))


def _reference_problems(parts: list[tuple[SchemaNode, Path]]) -> Iterator[Problem]:
    for node, path in parts:
        for keyword in REFERENCES:
            reference = node.get(keyword)
            if isinstance(reference, str) and node.lookup(reference) is None:
                yield "SAGA112", (*path, keyword), f"`{keyword}` leads to {reference[:80]}, which is not in this schema"


def _pattern_problems(parts: list[tuple[SchemaNode, Path]]) -> Iterator[Problem]:
    patterned = any("patternProperties" in node.schema for node, _ in parts)
    for node, path in parts:
        patterns = node.get("patternProperties")
        written = [(("pattern",), node.get("pattern"))]
        written += [(("patternProperties", name), name) for name in patterns] if isinstance(patterns, Mapping) else []
        for place, pattern in written:
            if isinstance(pattern, str) and (reason := pattern_problem(pattern)):
                code = "SAGA119" if is_other_dialect(pattern) else "SAGA112"
                yield code, (*path, *place), f"RE2 does not read this pattern: {reason}"
        if patterned and "unevaluatedProperties" in node.schema:
            message = "`unevaluatedProperties` in a schema with `patternProperties` is not supported"
            yield "SAGA119", (*path, "unevaluatedProperties"), message


def _format_problems(parts: Iterator[tuple[SchemaNode, Path]]) -> Iterator[Problem]:
    for node, path in parts:
        name = node.get("format")
        if isinstance(name, str) and name not in FORMATS:
            close = suggestion_help(name, FORMATS)
            message = f"the format `{name[:80]}` is not checked" + (f"; {close}" if close else "")
            yield "SAGA122", (*path, "format"), message


def _sensitivity_problems(parts: list[tuple[SchemaNode, Path]], reached: set[int]) -> Iterator[Problem]:
    for node, path in parts:
        value = node.get(SENSITIVE_KEYWORD)
        place = (*path, SENSITIVE_KEYWORD)
        if value is not None and not isinstance(value, bool):
            yield "SAGA123", place, f"`{SENSITIVE_KEYWORD}` must be true or false"
        elif value is True and id(node.schema) not in reached:
            yield (
                "SAGA123",
                place,
                f"`{SENSITIVE_KEYWORD}` stands where no keyword leads to, so it would protect nothing",
            )


def _default_problems(
    parts: list[tuple[SchemaNode, Path]], root: SchemaNode, dynamic: Mapping[str, list[SchemaNode]]
) -> Iterator[Problem]:
    given = [(node, path) for node, path in parts if "default" in node.schema]
    if not given:
        return
    places = _DefaultPlaces(dynamic)
    places.visit_all(root)
    for node, path in given:
        if id(node.schema) in places.filled:
            continue
        if id(node.schema) in places.conflicting:
            message = "this default is never filled in: another schema of the same property has its own"
        else:
            message = "this default is never filled in: it is not that of a property which may be missing"
        yield "SAGA121", (*path, "default"), message


class _DefaultPlaces:
    """The schemas whose defaults may be filled in, as :mod:`sagas.definition.input_completion` does it."""

    def __init__(self, dynamic: Mapping[str, list[SchemaNode]]) -> None:
        self.filled: set[int] = set()
        self.conflicting: set[int] = set()
        self._dynamic = dynamic
        self._waiting: list[tuple[SchemaNode, frozenset[str]]] = []
        self._seen: set[tuple[int, frozenset[str]]] = set()

    def visit_all(self, root: SchemaNode) -> None:
        self._waiting.append((root, frozenset()))
        while self._waiting:
            node, given = self._waiting.pop()
            if isinstance(node.schema, Mapping) and (id(node.schema), given) not in self._seen:
                self._seen.add((id(node.schema), given))
                self._visit(node, given)

    def _visit(self, node: SchemaNode, given: frozenset[str]) -> None:
        """``given``: the properties to which a schema around this one has given a default before."""
        # Which of several schemas a `$dynamicRef` leads to depends on the way to it; each of them may fill in defaults.
        together = list(closure([node], lambda part: (*always_applied(part), *dynamic_targets(part, self._dynamic))))
        defaults: dict[str, list[SchemaNode]] = {}
        for part in together:
            for name, property in part.properties():
                defaults.setdefault(name, []).extend(default_nodes(property))
        for name, nodes in defaults.items():
            filled = nodes and name not in given and same_default(nodes)
            (self.filled if filled else self.conflicting).update(id(part.schema) for part in nodes)
        given |= {name for name, nodes in defaults.items() if nodes}
        for part in together:
            self._wait(given, *sometimes_applied(part))
            self._wait(frozenset(), *(property for _, property in part.properties()), *_other_values(part))

    def _wait(self, given: frozenset[str], *nodes: SchemaNode) -> None:
        self._waiting += [(node, given) for node in nodes]


def _other_values(node: SchemaNode) -> Iterator[SchemaNode]:
    yield from (part for _, part in node.patterns())
    yield from node.prefix_items()
    for keyword in ("additionalProperties", "unevaluatedProperties", "items", "unevaluatedItems"):
        if (part := node.part(keyword)) is not None:
            yield part


def _node_at(node: YamlNode, path: Path) -> YamlNode:
    for part in path:
        children = node.value
        exists = part in children if isinstance(children, dict) else isinstance(part, int) and part < len(children)
        if not exists:
            break
        node = children[part]
    return node
