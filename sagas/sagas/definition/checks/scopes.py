"""The names that an expression may use, depending on its field, and what is known about their values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from sagas.actions.registry import result_schema
from sagas.builtins.registry import BUILTINS
from sagas.definition.checks.probes import answers
from sagas.definition.diagnostics import suggestion_help
from sagas.definition.input_schema import UndeclaredProperty, schema_at, single_type
from sagas.definition.model import StepState, checked_entry
from sagas.definition.parser.draft import SagaDraft, StepDraft
from sagas.definition.parser.field_types import quoted_names
from sagas.definition.parser.operation_builder import has_reply_probe
from sagas.errors import nearest
from sagas.expressions import ANY_ELEMENT
from sagas.expressions.other_languages import NAMES
from sagas.sql_text.sql_results import rows_schema
from sagas.text.exact_json import readable_json

ScopeKind = Literal[
    "top", "output", "decide", "do", "undo", "confirm", "probe", "response", "trigger", "schedule", "notify"
]
"""``decide`` is `if` and `for_each`; ``response`` is an expression over a participant's response."""

ROOTS = ("input", "steps", "item", "index", "saga", "step", "vars", "trigger", "response", "event")
_SAGA_FIELDS = ("id", "name", "started_at")
_STEP = ("key", "forward_key", "callback_url")
_TRIGGER_FIELDS = ("value", "key", "headers", "topic", "partition", "offset", "timestamp")
_SCHEDULE_FIELDS = ("scheduled_at", "scheduled_date")
_EVENT_FIELDS = ("id", "type", "timestamp", "data")
_REASON_FIELDS = ("kind", "step", "type", "message", "details")
_RESPONSE_FIELDS = ("status", "headers", "json", "text", "omitted", "bytes")
"""The fields of a response over HTTP."""

_STRINGS = frozenset(
    (
        *(("saga", field) for field in (*_SAGA_FIELDS, "state")),
        *(("saga", "reason", field) for field in ("kind", "type", "message")),
        *(("step", field) for field in _STEP),
        *(("event", field) for field in ("id", "type", "timestamp")),
        *(("trigger", field) for field in ("topic", "timestamp", *_SCHEDULE_FIELDS)),
    )
)
_INTEGERS = frozenset((("index",), ("trigger", "partition"), ("trigger", "offset")))
_TRIGGER_SCOPES = ("trigger", "schedule")
_STEP_SCOPES = ("do", "undo", "confirm", "probe", "response")

NamePath = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ScopeProblem:
    """Why a path cannot be used in a scope."""

    code: str
    message: str
    help: str | None = None


@dataclass(frozen=True, slots=True)
class ExpressionScope:
    """The scope of a field. ``step`` is None outside of steps (`id`, `labels`, `output`); ``over_response`` adds
    `response`. ``when`` are the milestones of a notification.
    """

    draft: SagaDraft
    kind: ScopeKind
    step: StepDraft | None = None
    over_response: bool = False
    when: tuple[str, ...] = ()

    def roots(self) -> tuple[str, ...]:
        if self.kind == "response":
            return ("response",)
        if self.kind in _TRIGGER_SCOPES:
            return ("trigger", "vars", "saga")
        allowed = ["input", "vars", "saga"]
        if self.kind != "top":
            allowed.append("steps")
        if self.step is not None and self.kind in _STEP_SCOPES:
            allowed.append("step")
            if self.step.step.for_each is not None:
                allowed += ["item", "index"]
        if self.over_response:
            allowed.append("response")
        if self.kind == "notify":
            allowed.append("event")
        return tuple(allowed)

    def problem(self, path: NamePath) -> ScopeProblem | None:
        """Why ``path`` cannot be used here; None if it can."""
        root = path[0]
        allowed = self.roots()
        if root not in allowed:
            names = quoted_names(allowed)
            if root not in ROOTS:
                hint = NAMES.get(root.lower(), "")
                is_here = hint and not any(f"{name}." in hint for name in ROOTS if name not in allowed)
                help = hint if is_here else suggestion_help(root, allowed, f"known here: {names}")
                return ScopeProblem("SAGA302", f"`{root}` is not known", help)
            help = f"known here: {names}"
            if self.kind == "decide" and root in ("item", "index"):
                help = "it is evaluated once for the whole step; leave items out in for_each: ….filter(i, …)"
            return ScopeProblem("SAGA302", f"`{root}` is not available here", help)
        if root == "steps":
            return self._step_problem(path)
        if root == "input":
            return self._schema_problem("input", self.draft.definition.input, path[1:])
        if root == "item":
            return self._schema_problem("item", self._item_schema(), path[1:])
        if root == "trigger":
            fields = _SCHEDULE_FIELDS if self.kind == "schedule" else _TRIGGER_FIELDS
            return self._field_problem("trigger", path, fields)
        if root == "saga":
            if self.kind in _TRIGGER_SCOPES:
                return self._field_problem("saga", path, ("name",))
            more = {"undo": ("reason",), "notify": ("state", "reason")}.get(self.kind, ())
            if path[1:2] == ("reason",) and "reason" in more:
                return self._field_problem("saga.reason", path[1:], _REASON_FIELDS)
            return self._field_problem("saga", path, (*_SAGA_FIELDS, *more))
        if root == "event":
            return self._field_problem("event", path, _EVENT_FIELDS)
        if root == "response":
            return self._field_problem("response", path, _RESPONSE_FIELDS) if self._response_of_http() else None
        return self._field_problem("step", path, _STEP) if root == "step" else None

    def _response_of_http(self) -> bool:
        if self.kind == "response":
            return True  # only `http` has arguments that see the response
        probe = self.step.step.probe if self.step is not None else None
        return probe is not None and probe.operation.uses == "http" and "http" not in self.draft.project.actions

    def _field_problem(self, what: str, path: NamePath, fields: NamePath) -> ScopeProblem | None:
        if len(path) < 2 or path[1] in fields:
            return None
        help = suggestion_help(path[1], fields, f"it has {quoted_names(fields)}")
        return ScopeProblem("SAGA302", f"`{what}` has no `{path[1]}` here", help)

    def _schema_problem(self, what: str, schema: object, path: NamePath) -> ScopeProblem | None:
        declared = schema_at(schema, path, self.draft.definition.input)
        if not isinstance(declared, UndeclaredProperty):
            return None
        help = _field_help(declared, (what, *path), "declare it under `input`, or allow `additionalProperties` there")
        return ScopeProblem("SAGA302", f"`{what}` has no `{declared.name}` in the schema of `input`", help)

    def _step_problem(self, path: NamePath) -> ScopeProblem | None:
        by_id = self.draft.steps_by_id
        if len(path) == 1:
            return ScopeProblem("SAGA302", "`steps` alone is not a value", "name a step: steps.<id>.result")
        id = path[1]
        target = by_id.get(id)
        if target is None:
            return ScopeProblem(
                "SAGA302",
                f"there is no step `{id}`",
                suggestion_help(id, by_id, f"the steps are {quoted_names(by_id)}"),
            )
        if not self._visible(id):
            assert self.step is not None
            if checked := checked_entry(self.step.id):
                help = "a check may use `input`, `vars` and `saga`: give it a `with` of its own"
                return ScopeProblem("SAGA303", f"the check of `{checked}` runs before `{id}`", help)
            return ScopeProblem("SAGA303", f"`{id}` is not an ancestor of `{self.step.id}`")
        if len(path) == 2:
            return None
        many = target.step.for_each is not None and id != (self.step.id if self.step else None)
        if path[2] == "result" and not many:
            declared = schema_at(self._result_schema(target), path[3:])
            if isinstance(declared, UndeclaredProperty):
                help = _field_help(declared, path, f"it has {quoted_names(declared.declared_names)}")
                return ScopeProblem("SAGA302", f"the result of `{id}` has no `{declared.name}`", help)
        fields = ("results", "state") if many else ("result", "state")
        if path[2] in fields or (many is False and path[2] == "results" and target.step.for_each is not None):
            return None
        if path[2] in ("result", "results"):
            runs = "runs once per item" if many else "runs once"
            return ScopeProblem("SAGA302", f"`{id}` {runs}: it has `{fields[0]}`", f"write steps.{id}.{fields[0]}")
        return ScopeProblem(
            "SAGA302", f"a step has no `{path[2]}`", suggestion_help(path[2], fields, f"it has {quoted_names(fields)}")
        )

    def _visible(self, id: str) -> bool:
        if self.step is None:
            return True
        own = self.kind in ("undo", "confirm") and id == self.step.id
        return own or self.draft.graph.is_ancestor(id, self.step.id)

    def null_reason(self, path: NamePath) -> str | None:
        """Why this result, or one of those of a step with `for_each`, may be null; None if it is always present."""
        if path[0] != "steps" or len(path) < 3 or path[2] not in ("result", "results"):
            return None
        target = self.draft.steps_by_id.get(path[1])
        if target is None:
            return None
        if path[2] == "results":
            is_left_out = path[3:4] == (ANY_ELEMENT,) and target.step.on_failure == "continue"
            return f"an item of `{target.id}` may fail and be skipped" if is_left_out else None
        own = self.step is not None and target.id == self.step.id
        if own:
            return _unknown_result_reason(self.draft, target)
        if self.kind == "notify" and set(self.when) - {"completed"}:
            return f"`{target.id}` may not have run at that time"
        if target.step.if_ is not None:
            return f"`{target.id}` may be skipped"
        return f"`{target.id}` may fail and be skipped" if target.step.on_failure == "continue" else None

    def variable_problem(self, path: NamePath) -> ScopeProblem | None:
        """Why the project has no such value under `vars`; None if it has, or if its variables are unknown."""
        names = self.draft.project.vars
        if names is None or path[0] != "vars" or len(path) < 2 or path[1] in (*names, ANY_ELEMENT):
            return None
        help = suggestion_help(path[1], names, f"add `{path[1]}` under [vars] in saga.toml, or a default")
        return ScopeProblem("SAGA308", f"the project has no variable `{path[1]}`", help)

    def schema_of(self, path: NamePath) -> object:
        """Return what the schema of `input` says about a path that begins with `input` or `item`; None if nothing."""
        whole = self.draft.definition.input
        schema = schema_at(whole if path[0] == "input" else self._item_schema(), path[1:], whole)
        return None if isinstance(schema, UndeclaredProperty) else schema

    def type_of(self, path: NamePath) -> str | None:
        """The JSON type of the value at a path; None if unknown."""
        root = path[0]
        if root in ("input", "item"):
            return single_type(self.schema_of(path))
        if path in _INTEGERS or (path == ("response", "status") and self._response_of_http()):
            return "integer"
        if path in _STRINGS:
            return "string"
        if root == "steps" and len(path) >= 3 and path[1] in self.draft.steps_by_id:
            return self._type_in_step(path)
        return None

    def _type_in_step(self, path: NamePath) -> str | None:
        if len(path) == 3 and path[2] in ("results", "state"):
            return {"results": "array", "state": "string"}[path[2]]
        schema = self._result_schema(self.draft.steps_by_id[path[1]])
        if path[2] == "result":
            return _known_type(schema_at(schema, path[3:]))
        return _known_type(schema_at(schema, path[4:])) if path[2:4] == ("results", ANY_ELEMENT) else None

    def _result_schema(self, target: StepDraft) -> object:
        if target.step.do.uses == "sql" and "sql" not in self.draft.project.actions:
            return rows_schema((target.step.do.with_ or {}).get("run"))
        return result_schema(self.draft.project.actions.get(target.step.do.uses))

    def element_problem(self, path: NamePath) -> tuple[str, str] | None:
        """The message and the help for a path into the elements of a list, which is not a reference."""
        problem = self.problem(path) if ANY_ELEMENT in path else None
        return None if problem is None else (problem.message, problem.help or "")

    def values_of(self, path: NamePath) -> tuple[str, ...]:
        """The only strings that the value at a path can be; empty if they are not known."""
        if path[0] == "steps" and len(path) == 3 and path[2] == "state":
            return get_args(StepState)
        schema = self.schema_of(path) if path[0] in ("input", "item") else None
        values = schema.get("enum") if isinstance(schema, Mapping) else None
        listed = isinstance(values, list) and all(isinstance(value, str) for value in values)
        return tuple(values) if listed and isinstance(values, list) else ()

    def item_source(self) -> NamePath | None:
        """The path of an item if `for_each` is a plain path into the input, as in ``input.lines.[]``."""
        source = self.step.step.for_each if self.step else None
        if not isinstance(source, str):
            return None
        text = source.strip().removeprefix("${{").removesuffix("}}").strip()
        parts = tuple(text.split("."))
        plain = parts[0] == "input" and all(part.isidentifier() for part in parts)
        return (*parts, ANY_ELEMENT) if plain else None

    def _item_schema(self) -> object:
        source = self.item_source()
        if source is None:
            return None
        declared = schema_at(self.draft.definition.input, source[1:])
        return None if isinstance(declared, UndeclaredProperty) else declared


def _field_help(declared: UndeclaredProperty, path: NamePath, otherwise: str) -> str:
    """Proposes the field that was meant, written as an expression can name it: `input.order-id` is a subtraction."""
    cut_off = [name for name in declared.declared_names if re.match(rf"{re.escape(declared.name)}\W", name)]
    close = cut_off[0] if cut_off else nearest(declared.name, declared.declared_names)
    if close is None:
        return otherwise
    if close.isidentifier():
        return f"did you mean `{close}`?"
    parent = ".".join(path[: path.index(declared.name)] if declared.name in path else path[:1])
    return f"write {parent}[{readable_json(close)}]"


def _known_type(schema: object) -> str | None:
    return None if isinstance(schema, UndeclaredProperty) else single_type(schema)


def _unknown_result_reason(draft: SagaDraft, target: StepDraft) -> str | None:
    """Why the result of a step may be null in its undo: an unguarded step that stays unknown has no result."""
    step = target.step
    if step.compensate is not None and step.compensate.always:
        return f"`{step.id}` is undone also after a rejection or a failure, without a result"
    builtin = BUILTINS.get(step.do.uses)
    is_probed = answers(draft, target) and not has_reply_probe(step)
    if step.do.guarded or is_probed or (builtin is not None and builtin.executor == "engine"):
        return None
    return f"`{step.id}` is unguarded and may be undone while its result is unknown"
