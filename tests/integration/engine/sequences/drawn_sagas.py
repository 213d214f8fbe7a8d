"""Small sagas drawn from a seed: what their steps are, and how their participants outside of the guards answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

Kind = Literal["sql", "python", "batch", "each", "two", "auto", "crossed", "call", "nested", "wait"]
"""``sql``: a guarded step with a guarded undo. ``python``: the same by a slow action, ``batch``: by one for all calls
of a chunk. ``each``: two of them, by `for_each`. ``two``: a two-phase commit. ``auto``: a step whose undo is automatic.
``crossed``: a guarded step whose undo is in another database. ``call``: a participant outside of the guards.
``nested``: a saga. ``wait``: a signal."""

ITEMS = 2
"""Those of a `for_each`."""

TIMEOUT = 1.0
"""Seconds an attempt at a participant may take."""

EFFECTFUL = ("sql", "python", "batch", "each", "two", "auto", "crossed", "call", "nested")
_DO = ("done", "done", "done", "lost", "failed", "rejected", "late", "silent")
_UNDO = ("done", "done", "done", "lost", "failed", "rejected")
_QUICK: Mapping[str, Any] = {"initial_interval": "100ms", "backoff_coefficient": 1, "max_interval": "300ms"}


@dataclass(frozen=True)
class DrawnStep:
    """A step. ``place``: the database of a guarded one. ``answers``: how a participant takes successive attempts, by
    ``do`` and ``undo``; after the last one it does what it is asked for. ``pause``: seconds that an action takes.
    """

    id: str
    kind: Kind
    place: str = "bank"
    needs: tuple[str, ...] | None = None
    pivot: bool = False
    undo: bool = True
    on_failure: str | None = None
    answers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    nested: DrawnSaga | None = None
    pause: float = 0.1
    is_savepoint: bool = False


@dataclass(frozen=True)
class DrawnSaga:
    """A saga and its steps. ``is_member``: of a bulk workflow, with an input that tells whether a step is rejected, and
    whether the saga waits.
    """

    name: str
    steps: tuple[DrawnStep, ...]
    has_lock: bool = False
    is_member: bool = False
    deadline: float | None = None

    @property
    def has_pivot(self) -> bool:
        return any(step.pivot for step in self.steps)

    def definition(self) -> str:
        """The text of its definition: JSON is YAML."""
        steps = [_step(step, is_member=self.is_member) for step in self.steps]
        defaults = {
            "timeout": f"{TIMEOUT:g}s",
            "compensate": {"retry": {"max_attempts": 3, **_QUICK}},
        }
        given: dict[str, Any] = (
            {"locks": {"keys": ["${{ saga.id }}" if self.is_member else "a lock"]}} if self.has_lock else {}
        )
        if self.is_member:
            properties = {"id": {"type": "string"}, "waits": {"type": "boolean"}, "divisors": {"type": "object"}}
            given = {
                "id": "${{ input.id }}",
                "input": {"type": "object", "required": [*properties], "properties": properties},
                **given,
            }
        if self.deadline is not None:
            given["deadline"] = f"{self.deadline:g}s"
        return json.dumps({"saga": self.name, **given, "defaults": defaults, "steps": steps}, indent=1)

    def all_sagas(self) -> Iterator[DrawnSaga]:
        """The saga and those nested in it."""
        yield self
        for step in self.steps:
            if step.nested is not None:
                yield from step.nested.all_sagas()

    def leaves(self, path: str = "") -> Iterator[tuple[str, DrawnStep]]:
        """The steps with an effect of their own, in this saga and those nested in it, each with its path."""
        for step in self.steps:
            if step.nested is not None:
                yield from step.nested.leaves(f"{path}{step.id}/")
            elif step.kind == "each":
                yield from ((f"{path}{step.id}#{item}", step) for item in range(ITEMS))
            elif step.kind != "wait":
                yield path + step.id, step


def draw_saga(random: Random, name: str = "outer", *, depth: int = 1, pivot_share: float = 0.35) -> DrawnSaga:
    """A saga of two to four steps; a nested one has one or two. It may have a pivot, anywhere."""
    count = random.choice((2, 3, 3, 4)) if depth else random.choice((1, 2, 2))
    pivot = random.randrange(count) if random.random() < pivot_share else None
    steps: list[DrawnStep] = []
    for place in range(count):
        kinds: tuple[Kind, ...] = ("sql", "sql", "each", "two", "auto", "crossed", "call", "call", "wait")
        if depth:
            kinds = (*kinds, "nested", "nested", "nested")
        kind = random.choice(kinds)
        if place == pivot:
            kind = random.choice(("sql", "call", "nested") if depth else ("sql", "call"))
        after = pivot is not None and place > pivot
        if after and kind in ("auto", "crossed", "two"):
            kind = "sql"
        if not depth and kind == "two":
            kind = "sql"  # nothing undoes it once it is confirmed
        if not depth and kind == "wait" and random.random() < 0.5:
            kind = "call"
        id = f"{'abcd'[place]}"
        share = 0.0 if not (after or place == pivot) else 0.5
        nested = draw_saga(random, f"inner{place}", depth=0, pivot_share=share) if kind == "nested" else None
        parallel = pivot is None and place > 0 and random.random() < 0.25
        steps.append(
            DrawnStep(
                id,
                kind,
                random.choice(("bank", "till")),
                needs=steps[-1].needs or () if parallel else None,
                pivot=place == pivot,
                undo=pivot is None or place < pivot,
                on_failure="park" if random.random() < 0.35 and place != pivot and kind != "wait" else None,
                answers=draw_answers(random) if kind in ("call", "crossed") else {},
                nested=nested,
            )
        )
    if depth and not any(step.kind == "wait" for step in steps) and random.random() < 0.7:
        place = random.randrange(1, len(steps) + 1)
        steps.insert(place, DrawnStep("w", "wait"))
    if not any(step.kind in EFFECTFUL for step in steps):
        steps[0] = DrawnStep("a", "sql", undo=pivot != 0, pivot=pivot == 0)
    return DrawnSaga(name, tuple(steps), has_lock=bool(depth) and random.random() < 0.3)


def draw_answers(random: Random) -> dict[str, list[str]]:
    """The answers of a participant to successive attempts, by ``do`` and ``undo``."""
    return {
        "do": [random.choice(_DO) for _ in range(random.randrange(4))],
        "undo": [random.choice(_UNDO) for _ in range(random.randrange(4))],
    }


def _step(step: DrawnStep, *, is_member: bool) -> dict[str, Any]:
    base: dict[str, Any] = {"id": step.id}
    if step.needs is not None:
        base["needs"] = list(step.needs)
    if step.pivot:
        base["pivot"] = True
    if step.is_savepoint:
        base["savepoint"] = {"attempts": 2, "wait": "100ms"}
    if step.on_failure is not None:
        base["on_failure"] = step.on_failure
    match step.kind:
        case "wait":
            if is_member:
                base["if"] = "input.waits"
            return {**base, "uses": "wait", "with": {"signal": f"go-{step.id}"}}
        case "nested":
            assert step.nested is not None
            return {**base, "uses": "saga", "with": {"name": step.nested.name, "input": {}}}
        case "auto":
            change = "update counters set n = n + 1 where id = :id"
            given = {"connection": step.place, "run": change, "params": {"id": f"${{{{ saga.id + '/{step.id}' }}}}"}}
            return {**base, "uses": "sql", "with": {**given, "expect_rows": 1}, "compensate": "auto"}
        case "call":
            base |= {"uses": "call"}
            if not (step.pivot or not step.undo):
                base["retry"] = {"max_attempts": 2, **_QUICK}
            elif step.pivot:
                base["retry"] = {"max_attempts": 3, **_QUICK}
            else:
                base["retry"] = _QUICK
            return {**base, "compensate": "uncall"} if step.undo else base
        case "python" | "batch":
            base |= {"uses": f"{step.place}.{step.kind}", "with": {"divisor": _divisor(step), "pause": step.pause}}
            base["retry"] = _QUICK
            return {**base, "compensate": {"uses": f"{step.place}.forget", "with": {}}} if step.undo else base
        case "sql" | "each" | "two" | "crossed":
            pass
    base |= {"uses": "sql", "with": _note(step.place, "do", "step.key")}
    if is_member:
        divided = "insert into journal (key, op) select :key, 'do' where 1 / :divisor = 1"
        params = {**base["with"]["params"], "divisor": _divisor(step)}
        base["with"] |= {"run": divided, "params": params, "expect_rows": 1}
    if step.kind == "each":
        base["for_each"] = list(range(ITEMS))
    if step.kind == "two":
        return {**base, "with": {**base["with"], "two_phase": True}}
    if not step.undo:
        return base
    if step.kind == "crossed":
        return {**base, "compensate": {"uses": "reverse", "with": {}}}
    return {**base, "compensate": {"uses": "sql", "with": _note(step.place, "undo", "step.forward_key")}}


def _divisor(step: DrawnStep) -> str:
    """The expression for a number of the input: the step is done with 1, rejected with 2, and fails with 0."""
    return f"${{{{ input.divisors.{step.id} }}}}"


def _note(place: str, op: str, key: str) -> dict[str, Any]:
    run = f"insert into journal (key, op) values (:key, '{op}')"
    return {"connection": place, "run": run, "params": {"key": f"${{{{ {key} }}}}"}}
