"""Finds parts of an input schema that no value can fit: every start would be refused, or lose an alternative.

A place is reported once: by the innermost schema that has the contradiction, not by those that refer to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sagas.definition.schema_conjunction import KINDS, Conjunction, Contradiction, certain_parts, is_false
from sagas.definition.schema_mismatches import JsonNode, mismatches
from sagas.definition.schema_nodes import SCHEMA_MAPS, Path, SchemaNode
from sagas.definition.schema_validation import CompiledSchema, canonical_schema
from sagas.errors import UsageError
from sagas.expressions.work_budget import TooComplex, bounded, charge

_NEGATED = ("not", "if")
"""Keywords below which a schema that nothing fits may be meant."""

_MAX_STEPS = 100_000
"""Schemas that are merged, and keywords that the validator applies to the values of `enum` and `const`."""

_COMPARED = {"type", "enum", "const", "minimum", "maximum", "minLength", "default", "title", "description", "format"}
"""Keywords that :func:`mismatches` knows, or that say nothing about a default."""


@dataclass(frozen=True, slots=True)
class Impossible:
    """A place, what is wrong there, and the types of which no value fits the schema at ``schema``.

    ``below``: the field (or element: ``0``) of the value that nothing fits, if it is not the value itself.
    """

    place: Path
    message: str
    kinds: frozenset[str]
    schema: Path
    below: tuple[str | int, ...] = ()


def impossible_parts(
    parts: Iterable[tuple[SchemaNode, Path]], root: Any, dynamic: Mapping[str, list[SchemaNode]]
) -> list[Impossible]:
    """Every part that no value of a type can fit; of a schema that takes too long, what comes first."""
    search = _ContradictionSearch(root, dynamic)
    wanted = [(node, path) for node, path in parts if isinstance(node.schema, Mapping) and not _is_negated(path)]
    with bounded(_MAX_STEPS), suppress(TooComplex):
        search.visit_alone(wanted)
        search.visit_together(wanted)
    return search.impossible


def _is_negated(path: Path) -> bool:
    """Return whether a keyword leads there below which nothing has to fit; a property may have its name."""
    return any(key in _NEGATED and (index == 0 or path[index - 1] not in SCHEMA_MAPS) for index, key in enumerate(path))


class _ContradictionSearch:
    def __init__(self, root: Any, dynamic: Mapping[str, list[SchemaNode]]) -> None:
        self.impossible: list[Impossible] = []
        self._root = root
        self._dynamic = dynamic
        self._compiled: CompiledSchema | None = None
        self._reported: set[int] = set()
        self._reported_together: list[frozenset[int]] = []
        self._seen: set[frozenset[int]] = set()

    def visit_alone(self, wanted: Sequence[tuple[SchemaNode, Path]]) -> None:
        """Contradictions within a schema, without those that it refers to."""
        for node, path in wanted:
            contradictions = list(self._conjunction([node], [node]).contradictions())
            self._report(contradictions, path, [node])
            if "default" in node.schema and not contradictions:
                self._check_default(node, path)

    def visit_together(self, wanted: Sequence[tuple[SchemaNode, Path]]) -> None:
        """Contradictions with the parts of `allOf`, references and alternatives."""
        merged: list[tuple[list[SchemaNode], SchemaNode, Path]] = []
        for node, path in wanted:
            merged.append((certain_parts([node], self._dynamic), node, path))
        for members, node, path in sorted(merged, key=lambda entry: len(entry[0])):
            if len(members) > 1:
                self._visit([node], members, path, ())
            if not self._is_reported(members):
                self._check_alternatives(node, members, path)

    def _visit(self, nodes: list[SchemaNode], members: list[SchemaNode], path: Path, below: Path) -> None:
        """``nodes`` apply to the value ``below`` the one that the schema at ``path`` describes."""
        waiting = [(nodes, members, below)]
        while waiting:
            nodes, members, below = waiting.pop()
            if self._is_reported(members):
                continue
            contradictions = list(self._conjunction(nodes, members).contradictions())
            self._report(contradictions, path, nodes, below)
            if not contradictions:
                for name, covering in self._inside(members):
                    waiting.append((covering, certain_parts(covering, self._dynamic), (*below, name)))

    def _inside(self, members: list[SchemaNode]) -> Iterator[tuple[str | int, list[SchemaNode]]]:
        """The schemas of each field and of the elements, where several apply that have not been merged before."""
        names = dict.fromkeys(name for part in members for name, _ in part.properties())
        fields: list[tuple[str | int, list[SchemaNode]]] = []
        for name in names:
            charge(len(members))
            fields.append((name, [node for part in members for node in part.covering(name)]))
        if not any("prefixItems" in part.schema for part in members):
            fields.append((0, [node for part in members if (node := part.part("items")) is not None]))
        for name, covering in fields:
            key = frozenset(id(node.schema) for node in covering)
            if len(key) > 1 and key not in self._seen and not any(is_false(node.schema) for node in covering):
                self._seen.add(key)
                yield name, covering

    def _check_alternatives(self, node: SchemaNode, members: list[SchemaNode], path: Path) -> None:
        for part, keyword in ((part, keyword) for part in members for keyword in ("anyOf", "oneOf")):
            alternatives = part.alternatives(keyword)
            if alternatives and all(self._is_excluded(alternative, node, members) for alternative in alternatives):
                message = f"no value fits: no part of `{keyword}` fits the other keywords that apply here"
                self._report([Contradiction(message, KINDS, (keyword,) if part is node else ())], path, [node])
                return

    def _is_excluded(self, part: SchemaNode, node: SchemaNode, members: list[SchemaNode]) -> bool:
        """Return whether no value fits an alternative and the schemas around it, although one may fit it alone."""
        own = certain_parts([part], self._dynamic)
        if self._is_reported(own):
            return False
        ids = {id(member.schema) for member in members}
        both = [*members, *(other for other in own if id(other.schema) not in ids)]
        if len(both) == len(members):
            return False
        charge(len(both))
        merged = self._conjunction([node, part], both)
        excluded = frozenset[str]().union(*(reason.kinds for reason in merged.contradictions()))
        return merged.kinds <= excluded

    def _conjunction(self, nodes: list[SchemaNode], members: list[SchemaNode]) -> Conjunction:
        return Conjunction(members, lambda value: all(self._fits(node, value) for node in nodes))

    def _is_reported(self, members: list[SchemaNode]) -> bool:
        charge(len(self._reported_together))
        ids = frozenset(id(part.schema) for part in members)
        return not self._reported.isdisjoint(ids) or any(group <= ids for group in self._reported_together)

    def _report(
        self, contradictions: list[Contradiction], path: Path, nodes: list[SchemaNode], below: Path = ()
    ) -> None:
        if not contradictions:
            return
        if len(nodes) == 1:
            self._reported.add(id(nodes[0].schema))
        else:
            self._reported_together.append(frozenset(id(node.schema) for node in nodes))
        where = f"in `{'.'.join('[]' if isinstance(key, int) else key[:80] for key in below)}`: " if below else ""
        for reason in contradictions:
            place = path if below else (*path, *reason.place)
            self.impossible.append(Impossible(place, where + reason.message, reason.kinds, path, below))

    def _check_default(self, node: SchemaNode, path: Path) -> None:
        value = node.schema["default"]
        without_default = {key: part for key, part in node.schema.items() if key != "default"}
        for _, problem in mismatches(JsonNode(value, ""), without_default, self._root):
            message = f"the default does not fit its own schema: {problem}"
            break
        else:
            if _COMPARED.issuperset(without_default) or self._fits(node, value):
                return
            message = "the default does not fit its own schema"
        self.impossible.append(Impossible((*path, "default"), message, frozenset(), path))

    def _fits(self, node: SchemaNode, value: Any) -> bool:
        """Return whether the validator takes the value; True where that costs too much."""
        try:
            if self._compiled is None:
                # Not one that is kept: it would also keep the parts of this document.
                self._compiled = CompiledSchema(canonical_schema(self._root))
            return self._compiled.fits(node, value)
        except (UsageError, RecursionError):
            return True
