"""The type of a field that names a task queue of Temporal."""

from __future__ import annotations

from dataclasses import dataclass

from sagas.definition.diagnostics import Report
from sagas.definition.parser.field_types import Schema, String
from sagas.definition.parser.yaml_nodes import YamlNode
from sagas.text.printable import printable_line
from sagas.text.shortening import shorten

_LONGEST = 1000
"""Characters of a name, which is Temporal's own limit."""

_RESERVED = "/_sys/"
"""Temporal refuses names that begin like this."""

_NO_NAME = rf"\$\{{\{{|^{_RESERVED}|[\x00-\x1f\x7f]"


@dataclass(frozen=True)
class TaskQueueName:
    """The name of a task queue. An expression could send a call to any worker, or to a queue that nobody polls."""

    def read(self, node: YamlNode, report: Report) -> str | None:
        name = String().read(node, report)
        if name is None:
            return None
        shown = f"`{printable_line(shorten(name))}`"
        if "${{" in name:
            report.add("SAGA107", node, f"a task queue takes no expression: {shown}", "write the name of a task queue")
        elif len(name) > _LONGEST:
            report.add("SAGA107", node, f"{shown} has more than {_LONGEST:,} characters", "choose a shorter name")
        elif name.startswith(_RESERVED):
            report.add("SAGA107", node, f"{shown} begins with `{_RESERVED}`, as Temporal's own task queues do")
        elif not name.isprintable():
            report.add("SAGA107", node, f"{shown} has characters that cannot be printed", "write the name without them")
        else:
            return name
        return None

    def schema(self) -> Schema:
        return {"type": "string", "minLength": 1, "maxLength": _LONGEST, "not": {"pattern": _NO_NAME}}
