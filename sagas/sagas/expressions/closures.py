"""Closures for names, fields, elements and comprehensions, with the error messages for missing values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from sagas.expressions.errors import ExpressionError, LimitError, MissingError
from sagas.expressions.limits import ERROR_WORK, NODES_PER_STEP, VALUES_PER_STEP, Evaluation, raise_too_many_steps
from sagas.expressions.nodes import Comprehension, walk
from sagas.expressions.values import OmittedValue, to_cel, type_name
from sagas.text.exact_json import readable_json

Code = Callable[[Evaluation], Any]

_SHOWN_FIELDS = 8


def name_access(name: str, offset: int) -> Code:
    """The closure that reads a name of the context."""

    def root(run: Evaluation) -> Any:
        try:
            return to_cel(run.context[name])
        except KeyError:
            raise ExpressionError(f"there is nothing named '{name}' here", offset) from None

    return root


def list_literal(parts: list[Code]) -> Code:
    """``[a, b, …]``. It is charged because its elements are copied when they are part of the result."""
    steps = 1 + len(parts) // VALUES_PER_STEP

    def build(run: Evaluation) -> list[Any]:
        run.charge(steps)
        return [part(run) for part in parts]

    return build


def field_access(operand: Code, name: str, owner: str, offset: int) -> Code:
    """``owner.name``."""

    def select(run: Evaluation) -> Any:
        value = operand(run)
        if value.__class__ is dict and name in value:
            return to_cel(value[name])
        run.charge(1)  # an error costs more than a value, and `default` makes it usual
        raise _no_field(run, owner, value, name, offset)

    return select


def lenient_field_access(operand: Code, name: str, owner: str, offset: int, *, missing: bool) -> Code:
    """``owner.name``, or null if the owner is null; with ``missing`` also if the owner has no such field."""

    def select(run: Evaluation) -> Any:
        value = operand(run)
        if value is None:
            return None
        if value.__class__ is dict and name in value:
            return to_cel(value[name])
        if missing and value.__class__ is dict:
            return None
        raise _no_field(run, owner, value, name, offset)

    return select


def field_presence(operand: Code, name: str, owner: str, offset: int) -> Code:
    """``has(owner.name)``."""

    def has(run: Evaluation) -> bool:
        value = operand(run)
        if value.__class__ is dict and name in value:
            if isinstance(value[name], OmittedValue):
                to_cel(value[name])  # the error of its reason: what was not kept is neither there nor missing
            return True
        if value is None or value.__class__ is dict:
            return False
        raise ExpressionError(f"{owner} is {type_name(value)} and has no fields", offset)

    return has


def element_access(operand: Code, key: Code, owner: str, offset: int) -> Code:
    """``owner[key]``: an element of a list, or a field of a map."""

    def index(run: Evaluation) -> Any:
        value, index = operand(run), key(run)
        if value.__class__ is list and index.__class__ is int:
            if 0 <= index < len(value):
                return to_cel(value[index])
            raise MissingError(
                f"{owner} has no element {_shortened(index)}; it has {len(value)}, the first is 0", offset
            )
        if index.__class__ is str and value.__class__ is not list:
            run.charge_work(len(index) >> 6)
            if value.__class__ is dict and index in value:
                return to_cel(value[index])
            run.charge(1)
            raise _no_field(run, owner, value, index, offset)
        if value is None:
            raise MissingError(f"{owner} is null and has no elements", offset)
        wants = "an integer" if value.__class__ is list else "a string"
        if value.__class__ in (list, dict):
            raise ExpressionError(
                f"{owner} is {type_name(value)}: its index is {wants}, not {type_name(index)}", offset
            )
        raise ExpressionError(f"{owner} is {type_name(value)} and has no elements", offset)

    return index


def _shortened(number: int) -> str:
    return str(number) if number.bit_length() <= 64 else "of so many digits"


_SHOWN_TEXT = 60
"""Characters of a result that is a text instead of an object."""


def _no_field(run: Evaluation, owner: str, value: Any, field: str, offset: int) -> ExpressionError:
    shown, step = field[:40], _step_of_result(owner)
    if value is None:
        if step is not None:
            # A default in an undo would let it pass over an effect whose result is lost.
            why = (
                "the step is done without a result, as after an HTTP answer without a body"
                if _state(run, step) in ("DONE", "CONFIRMED")
                else "a step has no result if it was skipped, its outcome is unknown or it returned none"
            )
            help = f"{why}: test {owner} != null, or find the effect by step.forward_key"
        elif owner.startswith("steps."):
            help = f"test {owner} != null"
        else:
            help = f"write default({owner}.{shown}, …)"
        return MissingError(f"{owner} is null and has no field '{shown}'; {help}", offset)
    if value.__class__ is not dict:
        help = ""
        if step is not None and value.__class__ is str:
            beginning = readable_json(value[:_SHOWN_TEXT]) + ("…" if len(value) > _SHOWN_TEXT else "")
            help = f"; a body that is not JSON is a text, and this one begins {beginning}"
        return ExpressionError(f"{owner} is {type_name(value)} and has no field '{shown}'{help}", offset)
    # Neither sorted as a whole nor searched for a similar name: `default` and `||` make this a usual case, for each
    # item of a list and in maps with thousands of keys.
    names = sorted(f"'{str(key)[:40]}'" for key in islice(value, _SHOWN_FIELDS))
    listed = ", ".join(names) + (", …" if len(value) > _SHOWN_FIELDS else "")
    has = f"it has {listed}" if names else "it is empty"
    return MissingError(f"{owner} has no field '{shown}'; {has}", offset)


def _step_of_result(owner: str) -> str | None:
    """The step whose whole result the text of an operand stands for; None if it is anything else."""
    match owner.split("."):
        case ["steps", step, "result"]:
            return step
    return None


def _state(run: Evaluation, step: str) -> Any:
    steps = run.context.get("steps")
    return steps[step].get("state") if isinstance(steps, Mapping) and isinstance(steps.get(step), Mapping) else None


# Comprehensions (all, exists, exists_one, filter, map). Each iteration is charged to the Evaluation.
def iterated_items(source: Code, text: str, offset: int, loop: str) -> Code:
    """The items of a list, or the sorted keys of a map, so that the order of fields in the JSON has no influence."""

    def items(run: Evaluation) -> list[Any]:
        value = source(run)
        if value.__class__ is list:
            return value
        if value.__class__ is dict:
            run.charge(len(value))
            if any(key.__class__ is not str for key in value):
                raise ExpressionError(f"{text} has a key that is not a string", offset)
            run.charge_order(sum(map(len, value)), len(value))
            return sorted(value)
        raise ExpressionError(f"{loop} needs a list or a map, and {text} is {type_name(value)}", offset)

    return items


def comprehension(node: Comprehension, items: Code, slot: int, condition: Code | None, body: Code) -> Code:
    """The closure of a comprehension from its compiled parts; ``slot`` holds its variable."""
    inner = [node.body] if node.condition is None else [node.body, node.condition]
    weight = 1 + sum(1 for part in inner for _ in walk(part)) // NODES_PER_STEP
    if node.kind == "map":
        return _map(items, slot, condition, body, weight)
    if node.kind in ("all", "exists"):
        return _any_or_all(items, slot, body, weight, decisive=node.kind == "exists")
    return _filter(items, slot, body, weight, count=node.kind == "exists_one")


def _charge(run: Evaluation, weight: int) -> None:
    run.steps_left -= weight
    if run.steps_left < 0:
        raise_too_many_steps()


def _map(items: Code, slot: int, condition: Code | None, body: Code, weight: int) -> Code:
    def mapped(run: Evaluation) -> list[Any]:
        slots, made = run.slots, []
        for item in items(run):
            _charge(run, weight)
            slots[slot] = to_cel(item)
            if condition is None or condition(run):
                made.append(body(run))
        return made

    return mapped


def _filter(items: Code, slot: int, body: Code, weight: int, *, count: bool) -> Code:
    def filtered(run: Evaluation) -> Any:
        slots, kept = run.slots, []
        for item in items(run):
            _charge(run, weight)
            pulled = slots[slot] = to_cel(item)
            if body(run):
                kept.append(pulled)
        return len(kept) == 1 if count else kept

    return filtered


def _any_or_all(items: Code, slot: int, body: Code, weight: int, *, decisive: bool) -> Code:
    """``all`` is decided by one false, ``exists`` by one true; errors in other items are then ignored, as in CEL."""

    def decided(run: Evaluation) -> bool:
        slots, problem = run.slots, None
        for item in items(run):
            _charge(run, weight)
            slots[slot] = to_cel(item)
            try:
                if body(run) is decisive:
                    return decisive
            except LimitError:
                raise
            except ExpressionError as error:
                run.charge_work(ERROR_WORK)
                problem = problem or error
        if problem is not None:
            raise problem
        return not decisive

    return decided
