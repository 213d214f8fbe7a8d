"""Python actions: the `@action` decorator, module loading, probe results and result schemas.

There is no global registry: the decorator sets an attribute on the function, and :func:`load_actions` collects the
decorated functions of the modules that a project lists. Two projects in one process never see each other's actions.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, get_type_hints

from sagas.actions.signature import ANY_ARGUMENTS, Signature, function_place, read_signature, without_a_name
from sagas.actions.type_schemas import type_schema
from sagas.errors import UsageError
from sagas.text.author_errors import make_ordinary
from sagas.text.author_values import named_error
from sagas.text.thread_output import stdout_as_stderr

ACTION_ATTRIBUTE = "__saga_action__"

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Action:
    """A Python action. With ``connection`` it runs inside the guard's transaction on that SQL connection.

    ``rejects`` False: it never raises Rejected. ``idempotent`` False: it does not honour the idempotency key, so an
    unknown attempt is not repeated without a probe. ``seals`` (probes): once it returns Absent, the participant refuses
    the key. ``holds``: it may emit events that wait for the commit point. ``batch``: it takes the calls of several
    sagas at once, see :mod:`sagas.actions.batch`.
    """

    name: str
    function: Callable[..., Any]
    connection: str | None = None
    rejects: bool = True
    idempotent: bool = True
    remembers_rejections: bool = False
    seals: bool = False
    holds: bool = False
    batch: bool = False

    @cached_property
    def signature(self) -> Signature:
        """The parameters of the function; the leading ``step`` is not an argument of a definition."""
        return ANY_ARGUMENTS if self.batch else read_signature(self.function)

    @cached_property
    def asynchronous(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    @property
    def place(self) -> str:
        """The function and its file, for messages."""
        return function_place(self.function) or f"the action {self.name}"

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return (inspect.getdoc(self.function) or "").split("\n", 1)[0]


class Actions(Mapping[str, Action]):
    """The actions of one project, by name."""

    def __init__(self, actions: Sequence[Action] = ()) -> None:
        self._actions = {action.name: action for action in actions}

    def __getitem__(self, name: str) -> Action:
        return self._actions[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._actions)

    def __len__(self) -> int:
        return len(self._actions)


def action(
    name: str,
    *,
    connection: str | None = None,
    rejects: bool = True,
    idempotent: bool = True,
    remembers_rejections: bool = False,
    seals: bool = False,
    holds: bool = False,
    batch: bool = False,
) -> Callable[[F], F]:
    """Declare a function as an action that definitions use by ``name``.

    Args:
        name: the value of ``uses:`` in definitions; also the activity type in Temporal.
        connection: SQL connection of saga.toml; the action then runs inside the guard's transaction and
            ``step.sql`` is that transaction.
        rejects: False promises that it never raises Rejected, so it may follow the pivot without a warning.
        idempotent: False means that the participant does not honour ``step.key``.
        remembers_rejections: True promises that after a rejection no attempt with that key has an effect, not even one
            that was sent earlier. Otherwise, without ``connection``, a rejection after an unknown attempt is retried.
        seals: for probes: once the probe returns Absent, the participant refuses the key.
        holds: it may call ``step.emit(…, hold=True)``; requires ``connection``.
        batch: the function is ``async def name(step: BatchStep, items: list[Item])`` and returns a result, or an
            instance of Rejected, for each item; requires ``connection``. A rejected item must have no effect.

    A parameter called ``from_`` receives the argument ``from``; the same holds for every Python keyword. ``**kwargs``
    receives all arguments without a parameter of their own; its annotation is the type of each.

    Raises UsageError when the function takes ``*args`` or positional-only arguments, when ``holds`` or ``batch`` is set
    without ``connection``, or when a batch action is not ``async def``.
    """

    if holds and connection is None:
        raise UsageError(
            f"the action {name} holds events, but has no connection",
            help="declare it: @action(…, connection=…, holds=True)",
        )

    if batch and connection is None:
        raise UsageError(f"the batch action {name} has no connection", help="declare it: @action(…, connection=…)")

    def mark(function: F) -> F:
        if batch and not inspect.iscoroutinefunction(function):
            raise UsageError(
                f"the batch action {name} is not a coroutine function",
                help="write async def name(step: BatchStep, items: list[Item])",
            )
        if (nameless := without_a_name(function)) is not None:
            raise UsageError(
                f"the action {name} takes {nameless}, which a definition cannot pass by name",
                help="name every argument, or take **kwargs; a decorator keeps the signature with functools.wraps",
            )
        setattr(
            function,
            ACTION_ATTRIBUTE,
            Action(name, function, connection, rejects, idempotent, remembers_rejections, seals, holds, batch),
        )
        return function

    return mark


def load_actions(names: Sequence[str], root: Path) -> Actions:
    """Import the modules of ``[actions]`` and collect their actions.

    A dotted name is imported with the project's folder on the path. A name that ends in ``.py`` is a file below
    ``root``, loaded by its path, so that it cannot collide with another module.
    Raises UsageError when a module cannot be loaded or two actions have the same name.
    """
    actions: dict[str, Action] = {}
    for _, module in load_modules(names, root):
        for value in list(vars(module).values()):
            action = getattr(value, ACTION_ATTRIBUTE, None)
            if not isinstance(action, Action):
                continue
            other = actions.get(action.name)
            if other is not None and other.function is not action.function:
                raise UsageError(
                    f"two actions are named {action.name}: {function_place(other.function)} and "
                    f"{function_place(action.function)}",
                    help="give one of them another name",
                )
            actions[action.name] = action
    return Actions(list(actions.values()))


def load_importable_actions(names: Sequence[str], root: Path) -> tuple[Actions, list[UsageError]]:
    """The actions of the modules that can be imported, and a mistake for each other one.

    Raises UsageError when two actions have the same name.
    """
    importable: list[str] = []
    mistakes: list[UsageError] = []
    for name in names:
        try:
            load_modules([name], root)
            importable.append(name)
        except UsageError as error:
            mistakes.append(error)
    return load_actions(importable, root), mistakes


def load_modules(names: Sequence[str], root: Path) -> list[tuple[str, ModuleType]]:
    """Import each module of ``[actions]`` once. Raises UsageError, as :func:`load_actions`."""
    if str(root) not in sys.path:
        # Appended, so that a file of the project never shadows a module of the standard library.
        sys.path.append(str(root))
    with stdout_as_stderr():  # a command may be about to print a JSON document
        return [(name, _load_file(name, root) if name.endswith(".py") else _load_module(name)) for name in names]


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise UsageError(f"the action module {name} was not found", help="check `actions` in saga.toml") from error
        raise UsageError(
            f"the action module {name} needs {error.name}, which is not installed",
            help="install its package where the worker runs",
        ) from error
    except (Exception, SystemExit) as error:
        make_ordinary(error)
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"the action module {name} cannot be imported: {named_error(error)}") from error


def _load_file(name: str, root: Path) -> ModuleType:
    path = (root / name).resolve()
    if not path.is_file():
        raise UsageError(f"the action file {name} was not found", help="check `actions` in saga.toml")
    module_name = f"saga_actions_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:32]}"
    loaded = sys.modules.get(module_name)
    if loaded is not None:
        return loaded
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"the action file {name} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        make_ordinary(error)
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"the action file {name} cannot be loaded: {named_error(error)}") from error
    return module


@dataclass(frozen=True, slots=True)
class Done:
    """The effect exists; ``result`` becomes the step's result."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class Absent:
    """The effect does not exist."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The probe cannot determine whether the effect exists."""

    message: str = ""


def result_schema(action: Action | None) -> Any:
    """JSON Schema of the result as it is stored; None when the action has no usable return annotation.

    A batch action returns a list of results; nothing is known about one of them.
    """
    return None if action is None or action.batch else _result_schema(action.function)


@lru_cache(maxsize=1024)
def _result_schema(function: Callable[..., Any]) -> Any:
    try:
        returned = get_type_hints(function, include_extras=True).get("return", Any)
    except Exception:  # noqa: BLE001 - an annotation is an expression, and may raise anything
        return None
    return None if returned is type(None) else schema_of_type(returned)


def schema_of_type(annotation: Any) -> Any:
    """JSON Schema of a type's values as they are stored; None when the type does not constrain them."""
    from pydantic import TypeAdapter

    if annotation is Any:
        return None
    try:
        # Serialization mode, because results are stored as JSON.
        return type_schema(TypeAdapter(annotation), "serialization")
    except Exception:  # noqa: BLE001 - pydantic has no JSON Schema for it, or the code of the annotated class raises
        return None
