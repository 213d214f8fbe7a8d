"""The message of a `require` whose condition is false."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.definition.schema_messages import shown_value
from sagas.expressions import compile_value
from sagas.expressions.template_syntax import OPENING
from sagas.expressions.values import UnusableValue
from sagas.machine.expressions.context import expression_context
from sagas.machine.expressions.evaluation import may_be_sensitive, shortened
from sagas.machine.state import Entry, SagaRun
from sagas.text.masked_texts import mask_texts
from sagas.text.printable import MASK

_SHOWN_VALUES = 3
"""Values that a message has."""


def unmet_requirement(run: SagaRun, entry: Entry) -> str:
    """The message of a `require` without one: its condition, with the single values that it reads."""
    source = (run.step(entry).do.with_ or {}).get("that")
    if entry.override is not None or not isinstance(source, str):
        return "the requirement is not met"
    template, plan = compile_value(source if OPENING in source else f"{OPENING}{source}\n}}}}"), run.plan
    paths = dict.fromkeys(
        reference.path for _, expression in template.expressions for reference in expression.references
    )
    names, values = expression_context(run, entry), list[str]()
    for path in paths:
        value: Any = names
        for part in path:
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None and not isinstance(value, Mapping | list | UnusableValue):
            values.append(f"{'.'.join(path)} is {MASK if may_be_sensitive(plan, path) else shown_value(value)}")
    text = " ".join(source.replace(OPENING, "").replace("}}", "").split())
    where = f", where {', '.join(values[:_SHOWN_VALUES])}" if values else ""
    message = f"the requirement is not met: `{shortened(text)}`{where}"
    return mask_texts(message, plan.sensitive_texts(run.input))
