"""Decides whether a value fits a JSON Schema. Each part of a schema is compiled to a function once.

jsonschema, which finds the errors of a value that does not fit, takes ten times as long. A part of a schema that is
applied to a value costs a step, and more for what its keywords touch beyond.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from sagas.definition.json_types import ANY_TYPE, TYPES, type_of
from sagas.definition.schema_keywords import KEYWORDS, Fits, accept, refuse
from sagas.definition.schema_nodes import SchemaNode
from sagas.expressions.work_budget import charge
from sagas.text.exact_numbers import is_whole

_KEYWORDS_PER_STEP = 3


class SchemaVerdicts:
    """The compiled parts of one schema, in which a part means the same wherever it is reached from."""

    def __init__(self) -> None:
        self._compiled: dict[int, tuple[Any, Fits]] = {}
        """By the id of a part, which is kept with it: an id is only that of a part as long as the part exists."""

    def of(self, node: SchemaNode) -> Fits:
        """The function that returns whether a value fits a part of the schema. It raises Unresolvable for a reference
        that leads nowhere, TooComplex, and RecursionError for a part that contains itself.
        """
        if not isinstance(node.schema, dict):
            return refuse if node.schema is False else accept
        compiled = self._compiled.get(id(node.schema))
        if compiled is None:
            compiled = self._compiled[id(node.schema)] = (node.schema, self._compile(node))
        return compiled[1]

    def _compile(self, node: SchemaNode) -> Fits:
        kinds = node.get("type")
        named = () if kinds is None else (kinds,) if isinstance(kinds, str) else kinds
        types = ANY_TYPE if kinds is None else frozenset().union(*(TYPES.get(kind, frozenset()) for kind in named))
        checks: dict[type, list[Fits]] = {type_: [] for type_ in types}
        if "integer" in named and "number" not in named:
            checks[Decimal].append(is_whole)
        for keyword, (applies, make) in KEYWORDS.items():
            if keyword in node.schema and (check := make(self.of, node, node.schema[keyword])) is not None:
                for type_ in applies & types:
                    checks[type_].append(check)
        if types == ANY_TYPE and not any(checks.values()):
            return accept
        compiled = {type_: (1 + len(listed) // _KEYWORDS_PER_STEP, listed) for type_, listed in checks.items()}

        def fits(value: Any) -> bool:
            of_type = compiled.get(type(value)) or compiled.get(type_of(value))
            if of_type is None:
                charge()
                return False
            charge(of_type[0])
            for check in of_type[1]:  # noqa: SIM110 - a generator takes longer than most checks
                if not check(value):
                    return False
            return True

        return fits

    def by_keyword(self, keyword: str, node: SchemaNode, value: Any) -> bool:
        """Return whether a value fits one keyword of a part."""
        applies, make = KEYWORDS[keyword]
        check = make(self.of, node, node.schema[keyword]) if type_of(value) in applies else None
        return check is None or check(value)
