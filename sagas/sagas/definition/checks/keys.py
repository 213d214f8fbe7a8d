"""Reports an undo or a confirm that looks for the effect under its own key: the effect is under the forward key.

Only clear cases are reported, because an action may create something of its own under its own key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from sagas.definition.checks.expressions import Written, written_in
from sagas.definition.diagnostics import Report
from sagas.definition.parser.draft import OperationDraft, SagaDraft, StepDraft
from sagas.definition.parser.yaml_nodes import YamlNode, children_of

_ROLES = {"compensate": "compensation", "confirmed": "compensation", "confirm": "confirm"}
_KEY = ("step", "key")
_FORWARD_KEY = ("step", "forward_key")
_CONTENT = ("query", "json", "form", "body")
_WITHOUT_CONTENT = ("GET", "HEAD", "DELETE")
_MAKES = re.compile(r"\s*(insert|replace|merge)\b", re.IGNORECASE)


def check_keys(draft: SagaDraft, report: Report) -> None:
    """Warn if an `http` or `sql` compensation or confirm addresses something by `step.key`."""
    for step in draft.steps:
        for operation in step.operations:
            if operation.role in _ROLES and operation.operation.uses in ("http", "sql"):
                for address in _addresses(step, operation):
                    _report(step, operation, address, report)


def _report(step: StepDraft, operation: OperationDraft, written: Written, report: Report) -> None:
    what = _ROLES[operation.role]
    for reference in written.expression.references:
        if reference.path[:2] == _KEY:
            message = (
                f"the {what} of `{step.id}` uses `step.key`, its own key; the effect of the step has the key "
                "`step.forward_key`"
            )
            report.add("SAGA307", written.node.position_at(written.start + reference.offset), message)


def _addresses(step: StepDraft, operation: OperationDraft) -> Iterator[Written]:
    """The expressions with `step.key` that are meant to find the forward effect but cannot."""
    if _named(step, operation):
        return
    given = children_of(operation.arguments)
    yield from _of_statements(step, given) if operation.operation.uses == "sql" else _of_request(step, operation, given)


def _of_request(step: StepDraft, operation: OperationDraft, given: dict[str, YamlNode]) -> Iterator[Written]:
    method = str((operation.operation.with_ or {}).get("method", "GET")).upper()
    address = ("path", "url", "query") if method in _WITHOUT_CONTENT else ("path", "url")
    addresses = [text for field in address for text in _own(given.get(field))]
    if method != "PUT":  # a PUT may create a resource of its own at this address
        yield from addresses
    if not _forward_names_it(step):
        return
    if method == "PUT":
        before = _before_the_key(children_of(step.operations[0].arguments))
        yield from (address for address in addresses if _text_before(address) in before)
    if not _same_request(step, operation):
        for field in _CONTENT:
            yield from _own(given.get(field)) if field not in address else ()


def _of_statements(step: StepDraft, given: dict[str, YamlNode]) -> Iterator[Written]:
    statements = _statements(given)
    makes = any(_MAKES.match(text) and _own(params) for text, params in statements)
    if _forward_names_it(step) and not makes:  # otherwise it may look for the row that it creates itself
        for _, params in statements:
            yield from _own(params)


def _statements(given: dict[str, YamlNode]) -> list[tuple[str, YamlNode | None]]:
    """Each statement with its parameters, for any form of `run`."""
    run = given.get("run")
    texts = []
    for statement in (run.value if isinstance(run.value, list) else [run]) if run is not None else ():
        form = children_of(statement) or {"sql": statement}
        text = form["sql"].value if "sql" in form else ""
        texts.append((str(text), form.get("params", given.get("params"))))
    return texts


def _forward_names_it(step: StepDraft) -> bool:
    """True if the forward call passes its key on, so that something is created under it."""
    given = children_of(step.operations[0].arguments)
    return any(_own(node) for field, node in given.items() if field != "headers")


def _named(step: StepDraft, operation: OperationDraft) -> bool:
    """True if the operation also names the forward key or the step's result, either of which finds the effect."""
    expected = (_FORWARD_KEY, ("steps", step.id, "result"))
    return any(
        reference.path[: len(path)] == path
        for written in written_in(operation.arguments)
        for reference in written.expression.references
        for path in expected
    )


def _same_request(step: StepDraft, operation: OperationDraft) -> bool:
    """True for the same method and address as the forward call: an offsetting entry next to the original one."""
    arguments: dict[str, Any] = dict(step.operations[0].operation.with_ or {})
    other: dict[str, Any] = dict(operation.operation.with_ or {})
    return all(arguments.get(field) == other.get(field) for field in ("connection", "method", "path", "url"))


def _before_the_key(forward: dict[str, YamlNode]) -> set[str]:
    return {_text_before(text) for field in ("path", "url") for text in _own(forward.get(field))}


def _text_before(written: Written) -> str:
    return str(written.node.value).partition("${{")[0]


def _own(node: YamlNode | None) -> list[Written]:
    """The expressions in a value that use `step.key`."""
    return [text for text in written_in(node) if any(ref.path[:2] == _KEY for ref in text.expression.references)]
