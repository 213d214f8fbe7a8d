"""Checks the values of the parameters of SQL against their places, as far as their types are known."""

from __future__ import annotations

from sagas.definition.checks.expressions import operation_scope, template_type
from sagas.definition.checks.sql_texts import WrittenSql, dialects_of, written_sql
from sagas.definition.diagnostics import Report
from sagas.definition.parser.draft import SagaDraft
from sagas.definition.parser.yaml_nodes import YamlNode
from sagas.sql_text.parameters.divided_parameters import divided_parameters, instead_of_divided
from sagas.sql_text.parameters.structured_parameters import PLACES, instead_of_structured, structured_places
from sagas.sql_text.parsed import ParsedSql
from sagas.sql_text.sql_statements import parse_guarded
from sagas.sql_text.tokens import RefusedStatement


def check_sql_parameters(draft: SagaDraft, report: Report) -> None:
    """Report parameters of SQL with a list or an object where one value is expected, and divisions whose result depends
    on how a number is written (`5` or `5.0`)."""
    for written in written_sql(draft):
        dialects = dialects_of(draft.project, written)
        if written.operation.operation.uses != "sql" or len(dialects) != 1 or not written.given:
            continue
        kinds = _kinds(draft, written)
        for node in written.statements:
            try:
                parsed = parse_guarded(node.value, dialects[0])
            except RefusedStatement:
                continue  # reported with the texts
            _check(parsed, node, kinds, report)


def _kinds(draft: SagaDraft, written: WrittenSql) -> dict[str, str | None]:
    """The type of each parameter, if it is known."""
    step = next((step for step in draft.steps if step.id == written.step), None)
    scope = operation_scope(draft, written.operation, step)
    assert written.params is not None
    return {
        str(name): template_type(value, scope) if value.has_expression else _literal_kind(value.value)
        for name, value in written.params.value.items()
    }


def _literal_kind(value: object) -> str | None:
    match value:
        case list():
            return "array"
        case dict():
            return "object"
        case bool() | str() | None:
            return "string"
        case int():
            return "integer"
    return "number"


def _check(parsed: ParsedSql, node: YamlNode, kinds: dict[str, str | None], report: Report) -> None:
    if any(kind in ("array", "object") for kind in kinds.values()):
        for place in structured_places(parsed):
            kind = kinds.get(place.parameter)
            # A comparison with a column of JSON takes them, and the columns are not read here.
            if kind == "object" or (kind == "array" and place.use != "array"):
                if place.use == "compared" and place.direct:
                    continue
                what = "a list" if kind == "array" else "an object"
                message = f"`:{place.parameter}` is {what}, and its place is {PLACES[place.use]}"
                help = instead_of_structured(place.parameter, place.use, parsed.dialect)
                report.add("SAGA431", node.position_at(parsed.offset_of(place.parameter)), message, help)
    if any(kind in ("number", None) for kind in kinds.values()):
        for name in divided_parameters(parsed):
            if kinds.get(name, "string") in ("number", None):
                message = f"the quotient depends on how the number `:{name}` is written: 10 and 10.0 give two results"
                help = instead_of_divided(name, parsed.dialect)
                report.add("SAGA429", node.position_at(parsed.offset_of(name)), message, help)
