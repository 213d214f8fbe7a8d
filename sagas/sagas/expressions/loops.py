"""The comprehensions: all, exists, exists_one, filter, map. Each iteration uses up steps of the Run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sagas.expressions.errors import ExpressionError, LimitError
from sagas.expressions.limits import PARTS_PER_STEP, Run, too_many_steps
from sagas.expressions.nodes import Comprehension, walk
from sagas.expressions.values import kind_of, pull

Code = Callable[[Run], Any]


def over(source: Code, text: str, offset: int, loop: str) -> Code:
    """The items of a list, or the keys of a map in alphabetical order: the order in the JSON must not matter."""

    def items(run: Run) -> list[Any]:
        value = source(run)
        if value.__class__ is list:
            return value
        if value.__class__ is dict:
            run.charge(len(value))
            if any(key.__class__ is not str for key in value):
                raise ExpressionError(f"{text} has a key that is no string", offset)
            return sorted(value)
        raise ExpressionError(f"{loop} needs a list or a map, and {text} is {kind_of(value)}", offset)

    return items


def loop(node: Comprehension, items: Code, slot: int, condition: Code | None, body: Code) -> Code:
    """The closure of a comprehension whose parts have been compiled."""
    inner = [node.body] if node.condition is None else [node.body, node.condition]
    weight = 1 + sum(1 for part in inner for _ in walk(part)) // PARTS_PER_STEP
    if node.loop == "map":
        return _mapped(items, slot, condition, body, weight)
    if node.loop in ("all", "exists"):
        return _decided(items, slot, body, weight, decisive=node.loop == "exists")
    return _filtered(items, slot, body, weight, count=node.loop == "exists_one")


def _use(run: Run, weight: int) -> None:
    run.left -= weight
    if run.left < 0:
        too_many_steps()


def _mapped(items: Code, slot: int, condition: Code | None, body: Code, weight: int) -> Code:
    def mapped(run: Run) -> list[Any]:
        slots, made = run.slots, []
        for item in items(run):
            _use(run, weight)
            slots[slot] = pull(item)
            if condition is None or condition(run):
                made.append(body(run))
        return made

    return mapped


def _filtered(items: Code, slot: int, body: Code, weight: int, *, count: bool) -> Code:
    def filtered(run: Run) -> Any:
        slots, kept = run.slots, []
        for item in items(run):
            _use(run, weight)
            pulled = slots[slot] = pull(item)
            if body(run):
                kept.append(pulled)
        return len(kept) == 1 if count else kept

    return filtered


def _decided(items: Code, slot: int, body: Code, weight: int, *, decisive: bool) -> Code:
    """``all`` is decided by one false, ``exists`` by one true; then errors of other items do not matter (CEL)."""

    def decided(run: Run) -> bool:
        slots, problem = run.slots, None
        for item in items(run):
            _use(run, weight)
            slots[slot] = pull(item)
            try:
                if body(run) is decisive:
                    return decisive
            except LimitError:
                raise
            except ExpressionError as error:
                problem = problem or error
        if problem is not None:
            raise problem
        return not decisive

    return decided
