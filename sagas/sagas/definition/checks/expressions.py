"""Every expression parses, names only what is there, and calculates only with numbers."""

from __future__ import annotations

from sagas.builtins import BUILTINS, EXPRESSION
from sagas.definition.checks.literals import KIND_WORDS
from sagas.definition.checks.scopes import Place, Scope
from sagas.definition.checks.written import Written, written_in
from sagas.definition.diagnostics import Report
from sagas.definition.draft import Draft, OperationDraft, StepDraft, kafka_triggers
from sagas.definition.schema_paths import is_sensitive
from sagas.definition.source import Node
from sagas.expressions import ExpressionError, check_types, compile_expression, infer_kind
from sagas.expressions.scanner import scan

_SCOPES: dict[str, Place] = {
    "do": "do",
    "compensate": "undo",
    "confirmed": "undo",
    "confirm": "confirm",
    "probe": "probe",
}
_CALL_HELP = (
    "Functions are those of standard CEL, and sum, min, max, round, sort, join, split, lower, upper, date, "
    "default(x, y) and decimal(x)."
)
_PLAIN_TEXT = ("id", "labels")


def check_expressions(draft: Draft, report: Report) -> None:
    """All expressions of a saga, each in the scope of its place."""
    top = draft.top
    for field in _PLAIN_TEXT:
        if field in top:
            scope = Scope(draft, "top")
            for written in written_in(top.at(field), report):
                _check(written, scope, report)
                _check_sensitive(field, written, draft, report)
    if "output" in top:
        _check_value(top.at("output"), Scope(draft, "output"), report)
    for trigger in kafka_triggers(top):
        for field in ("id", "input", "filter"):
            if field in trigger:
                _check_value(trigger.at(field), Scope(draft, "trigger"), report, bare=field == "filter")
    for step in draft.steps:
        _check_step(draft, step, report)
    for operation in draft.notify:
        when = tuple(operation.parsed.get("when") or ())
        _check_arguments(operation, Scope(draft, "notify", when=when), Scope(draft, "response"), report)


def _check_step(draft: Draft, step: StepDraft, report: Report) -> None:
    parsed = step.parsed
    decide = Scope(draft, "decide", step)
    if "if" in parsed:
        _check_value(parsed.at("if"), decide, report, bare=True)
    if "for_each" in parsed:
        _check_value(parsed.at("for_each"), decide, report)
        _check_items(parsed.at("for_each"), decide, report)
    if "fairness_key" in parsed:
        _check_value(parsed.at("fairness_key"), Scope(draft, "do", step), report)
    for operation in step.operations:
        _check_operation(draft, step, operation, report)


def _check_operation(draft: Draft, step: StepDraft, operation: OperationDraft, report: Report) -> None:
    scope = Scope(draft, _SCOPES[operation.role], step)
    _check_arguments(operation, scope, Scope(draft, "response", step), report)
    if operation.role == "probe":
        over_response = Scope(draft, "probe", step, over_response=True)
        for field in ("done", "absent", "result"):
            if field in operation.parsed:
                _check_value(operation.parsed.at(field), over_response, report, bare=True)


def _check_arguments(operation: OperationDraft, scope: Scope, over_response: Scope, report: Report) -> None:
    builtin = BUILTINS.get(operation.operation.uses)
    arguments = operation.arguments
    if arguments is not None and isinstance(arguments.value, dict):
        properties = builtin.parameters["properties"] if builtin else {}
        for name, node in arguments.value.items():
            marker = properties.get(name, {}).get(EXPRESSION)
            _check_value(node, over_response if marker == "response" else scope, report, bare=marker is not None)


def _check_value(node: Node, scope: Scope, report: Report, *, bare: bool = False) -> None:
    for written in written_in(node, report, bare=bare):
        _check(written, scope, report)


def _check_items(node: Node, scope: Scope, report: Report) -> None:
    """`for_each` over something that is certainly no list could only fail."""
    if not isinstance(node.value, str):
        return
    try:
        parts = scan(node.value)
        expression = compile_expression(parts[0].text) if parts and parts[0].expression else None
    except ExpressionError:
        return  # told already
    kind = "string" if len(parts) > 1 else infer_kind(expression, scope.type_of) if expression else None
    if kind is not None and kind != "array":
        what = KIND_WORDS.get(kind, kind)
        report.add("SAGA306", node, f"`for_each` needs a list, and this is {what}")


def _check(written: Written, scope: Scope, report: Report) -> None:
    for reference in written.expression.references:
        place = written.node.at(written.start + reference.offset)
        problem = scope.problem(reference.path)
        if problem is not None:
            report.add(problem.code, place, problem.message, problem.help)
        elif not reference.guarded and (why := scope.nullable(reference.path)):
            path = ".".join(reference.path)
            id = reference.path[1]
            help = f"Say what to use instead: default({path}, …), or test it: steps.{id}.result != null ? … : …."
            report.add("SAGA305", place, f"`{path}` may be null: {why}", help)
    for offset, sentence in check_types(written.expression, scope.type_of):
        # Operators are quoted at the start of the sentence; the rest is about calls.
        arithmetic = sentence.startswith("'") or "takes numbers, and" in sentence
        help = None if arithmetic else _CALL_HELP
        report.add("SAGA304" if arithmetic else "SAGA302", written.node.at(written.start + offset), sentence, help)


def _check_sensitive(field: str, written: Written, draft: Draft, report: Report) -> None:
    for reference in written.expression.references:
        if reference.path[0] == "input" and is_sensitive(draft.definition.input, reference.path[1:]):
            path = ".".join(reference.path)
            what = "a label" if field == "labels" else "the id"
            place = written.node.at(written.start + reference.offset)
            report.add("SAGA117", place, f"`{path}` is sensitive and cannot be in {what}")
