"""Which names an expression may use, depending on where it stands, and what is known about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sagas.builtins import BUILTINS
from sagas.definition.checks.probes import answers
from sagas.definition.checks.results import result_schema
from sagas.definition.diagnostics import did_you_mean
from sagas.definition.draft import Draft, StepDraft
from sagas.definition.request_operations import has_reply_probe
from sagas.definition.schema_paths import ELEMENT, Missing, follow, kind_of
from sagas.definition.shapes import names

Place = Literal["top", "output", "decide", "do", "undo", "confirm", "probe", "response", "trigger", "notify"]
"""``decide`` is `if` and `for_each`; ``response`` an expression over the answer of a participant."""

ROOTS = ("input", "steps", "item", "index", "saga", "step", "vars", "trigger", "response", "event")
_SAGA = ("id", "name", "started_at")
_STEP = ("key", "forward_key")
_TRIGGER = ("value", "key", "headers", "topic", "partition", "offset", "timestamp")
_EVENT = ("id", "type", "timestamp", "data")
_PER_STEP = ("do", "undo", "confirm", "probe", "response")

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a path cannot be used here."""

    code: str
    message: str
    help: str | None = None


@dataclass(frozen=True, slots=True)
class Scope:
    """One place in a saga. ``step`` is None for `id`, `labels` and `output`; ``over_response`` adds `response`.

    ``when`` are the moments of a notification.
    """

    draft: Draft
    place: Place
    step: StepDraft | None = None
    over_response: bool = False
    when: tuple[str, ...] = ()

    def roots(self) -> tuple[str, ...]:
        if self.place == "response":
            return ("response",)
        if self.place == "trigger":
            return ("trigger", "vars", "saga")
        allowed = ["input", "vars", "saga"]
        if self.place != "top":
            allowed.append("steps")
        if self.step is not None and self.place in _PER_STEP:
            allowed.append("step")
            if self.step.step.for_each is not None:
                allowed += ["item", "index"]
        if self.over_response:
            allowed.append("response")
        if self.place == "notify":
            allowed.append("event")
        return tuple(allowed)

    def problem(self, path: Path) -> Problem | None:
        """What is wrong with naming ``path`` here; None when nothing is."""
        root = path[0]
        allowed = self.roots()
        if root not in allowed:
            known = names(allowed)
            if root not in ROOTS:
                return Problem(
                    "SAGA302", f"`{root}` is not known", did_you_mean(root, allowed, f"Known here: {known}.")
                )
            return Problem("SAGA302", f"`{root}` is not available here", f"Known here: {known}.")
        if root == "steps":
            return self._step_problem(path)
        if root == "input":
            return self._schema_problem("input", self.draft.definition.input, path[1:])
        if root == "item":
            return self._schema_problem("item", self._item_schema(), path[1:])
        if root == "trigger":
            return self._field_problem("trigger", path, _TRIGGER)
        if root == "saga":
            if self.place == "trigger":
                return self._field_problem("saga", path, ("name",))
            more = {"undo": ("reason",), "notify": ("state", "reason")}.get(self.place, ())
            known = (*_SAGA, *more)
            return self._field_problem("saga", path, known)
        if root == "event":
            return self._field_problem("event", path, _EVENT)
        return self._field_problem("step", path, _STEP) if root == "step" else None

    def _field_problem(self, what: str, path: Path, known: Path) -> Problem | None:
        if len(path) < 2 or path[1] in known:
            return None
        help = did_you_mean(path[1], known, f"It has {names(known)}.")
        return Problem("SAGA302", f"`{what}` has no `{path[1]}` here", help)

    def _schema_problem(self, what: str, schema: object, path: Path) -> Problem | None:
        found = follow(schema, path, self.draft.definition.input)
        if not isinstance(found, Missing):
            return None
        help = did_you_mean(found.name, found.known, "Declare it under `input`, or allow `additionalProperties` there.")
        return Problem("SAGA302", f"`{what}` has no `{found.name}` in the schema of `input`", help)

    def _step_problem(self, path: Path) -> Problem | None:
        by_id = self.draft.by_id
        if len(path) == 1:
            return Problem("SAGA302", "`steps` alone is no value", "Name a step: steps.<id>.result.")
        id = path[1]
        target = by_id.get(id)
        if target is None:
            return Problem("SAGA302", f"there is no step `{id}`", did_you_mean(id, by_id, f"Steps are {names(by_id)}."))
        if not self._visible(id):
            assert self.step is not None
            return Problem("SAGA303", f"`{id}` is not an ancestor of `{self.step.id}`")
        if len(path) == 2:
            return None
        many = target.step.for_each is not None and id != (self.step.id if self.step else None)
        if path[2] == "result" and not many:
            found = follow(self._result_schema(target), path[3:])
            if isinstance(found, Missing):
                help = did_you_mean(found.name, found.known, f"It has {names(found.known)}.")
                return Problem("SAGA302", f"the result of `{id}` has no `{found.name}`", help)
        known = ("results", "state") if many else ("result", "state")
        if path[2] in known or (many is False and path[2] == "results" and target.step.for_each is not None):
            return None
        if path[2] in ("result", "results"):
            runs = "runs once per item" if many else "runs once"
            return Problem("SAGA302", f"`{id}` {runs}: it has `{known[0]}`", f"Write steps.{id}.{known[0]}.")
        return Problem("SAGA302", f"a step has no `{path[2]}`", did_you_mean(path[2], known, f"It has {names(known)}."))

    def _visible(self, id: str) -> bool:
        if self.step is None:
            return True
        own = self.place in ("undo", "confirm") and id == self.step.id
        return own or self.draft.graph.is_ancestor(id, self.step.id)

    def nullable(self, path: Path) -> str | None:
        """Why this result may be null; None when it is always there."""
        if path[0] != "steps" or len(path) < 3 or path[2] != "result":
            return None
        target = self.draft.by_id.get(path[1])
        if target is None:
            return None
        own = self.step is not None and target.id == self.step.id
        if own:
            return _may_be_unknown(self.draft, target)
        if self.place == "notify" and set(self.when) - {"completed"}:
            return f"`{target.id}` may not have run at that moment"
        if target.step.if_ is not None:
            return f"`{target.id}` may be skipped"
        return f"`{target.id}` may fail and be left out" if target.step.on_failure == "continue" else None

    def type_of(self, path: Path) -> str | None:
        """The JSON type of what a path leads to, None when it is not known."""
        root = path[0]
        if root == "input":
            return _known_kind(follow(self.draft.definition.input, path[1:]))
        if root == "item":
            return _known_kind(follow(self._item_schema(), path[1:], self.draft.definition.input))
        if root == "index" or path in (("trigger", "partition"), ("trigger", "offset")):
            return "integer"
        if path in (("trigger", "topic"), ("trigger", "timestamp")):
            return "string"
        if path in (("saga", "id"), ("saga", "name"), ("saga", "started_at")):
            return "string"
        if path in (("step", "key"), ("step", "forward_key")):
            return "string"
        if root == "steps" and len(path) >= 3 and path[1] in self.draft.by_id:
            return self._type_in_step(path)
        return None

    def _type_in_step(self, path: Path) -> str | None:
        if len(path) == 3 and path[2] in ("results", "state"):
            return {"results": "array", "state": "string"}[path[2]]
        schema = self._result_schema(self.draft.by_id[path[1]])
        if path[2] == "result":
            return _known_kind(follow(schema, path[3:]))
        return _known_kind(follow(schema, path[4:])) if path[2:4] == ("results", ELEMENT) else None

    def _result_schema(self, target: StepDraft) -> object:
        return result_schema(self.draft.actions.get(target.step.do.uses))

    def _item_schema(self) -> object:
        """The schema of `item` when `for_each` is a plain path into the input."""
        source = self.step.step.for_each if self.step else None
        if not isinstance(source, str):
            return None
        text = source.strip().removeprefix("${{").removesuffix("}}").strip()
        parts = tuple(text.split("."))
        if parts[0] != "input" or not all(part.isidentifier() for part in parts):
            return None
        found = follow(self.draft.definition.input, (*parts[1:], ELEMENT))
        return None if isinstance(found, Missing) else found


def _known_kind(schema: object) -> str | None:
    return None if isinstance(schema, Missing) else kind_of(schema)


def _may_be_unknown(draft: Draft, target: StepDraft) -> str | None:
    """An unguarded step that stayed unknown is undone with a null result."""
    step = target.step
    builtin = BUILTINS.get(step.do.uses)
    asked = answers(draft, target) and not has_reply_probe(step)
    if step.do.guarded or asked or (builtin is not None and builtin.where == "engine"):
        return None
    return f"`{step.id}` is unguarded and may be undone without anybody knowing its result"
