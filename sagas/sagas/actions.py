"""Python actions: the `@action` decorator, and loading the modules that hold them.

The decorator registers nothing anywhere: it leaves a note on the function, and :func:`load_actions` collects
the notes of the modules a project names. So two projects in one process never see each other's actions.
"""

from __future__ import annotations

import contextlib
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

from sagas.errors import UsageError
from sagas.step import Signature, read_signature, without_a_name

ACTION_ATTRIBUTE = "__saga_action__"

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Action:
    """A registered action. ``connection`` puts it inside the guard's transaction on that SQL connection.

    ``rejects`` False: it never raises Rejected. ``idempotent`` False: it does not honour the idempotency key, so an
    unknown attempt is never repeated unseen. ``seals`` (probes): it refuses the key from the moment it says absent.
    ``holds``: it may emit events that wait for the commit point.
    """

    name: str
    function: Callable[..., Any]
    connection: str | None = None
    rejects: bool = True
    idempotent: bool = True
    seals: bool = False
    holds: bool = False

    @cached_property
    def signature(self) -> Signature:
        """What it takes; the leading ``step`` is no argument of a definition."""
        return read_signature(self.function)

    @cached_property
    def asynchronous(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return (inspect.getdoc(self.function) or "").split("\n", 1)[0]

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The keyword arguments for the function, converted to the annotated types.

        Raises ValueError, one sentence, when an argument is missing, unknown or of the wrong type.
        """
        from pydantic import ValidationError

        signature = self.signature
        for parameter in signature.twice(arguments):
            raise ValueError(
                f"{self.name}: {parameter.name!r} and {parameter.variable!r} are one argument, given twice"
            )
        bound = {}
        for name, value in arguments.items():
            parameter = signature.find(name)
            if parameter is None:
                takes = ", ".join(one.name for one in signature.parameters) or "none"
                raise ValueError(f"{self.name} takes no argument {name!r}; it takes {takes}")
            try:
                bound[signature.variable(name)] = parameter.adapter.validate_python(value)
            except ValidationError as error:
                problem = error.errors()[0]
                place = ".".join(str(part) for part in (name, *problem["loc"]))
                raise ValueError(f"{self.name}: argument {place}: {problem['msg']}") from None
        for parameter in signature.missing(arguments):
            raise ValueError(f"{self.name} needs the argument {parameter.name!r}")
        return bound


class Actions(Mapping[str, Action]):
    """The actions of one project, by name."""

    def __init__(self, actions: Sequence[Action] = ()) -> None:
        self._actions = {one.name: one for one in actions}

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
    seals: bool = False,
    holds: bool = False,
) -> Callable[[F], F]:
    """Make a function an action that definitions use by ``name``.

    Args:
        name: what stands after ``uses:``; also the activity type in Temporal.
        connection: SQL connection of saga.toml; the action then runs inside the guard's transaction and
            ``step.sql`` is that transaction.
        rejects: False promises that it never raises Rejected, so it may stand after the pivot without a warning.
        idempotent: False says that the participant does not honour ``step.key``.
        seals: for probes: from the moment it answers Absent, the participant refuses the key.
        holds: it may call ``step.emit(…, hold=True)``; needs ``connection``.

    A parameter called ``from_`` takes the argument ``from``, and so for every keyword of Python. ``**kwargs`` takes
    all arguments without a parameter of their own; its annotation is the type of each.

    Raises UsageError when the function takes ``*args`` or positional-only arguments, or when it is to hold events
    without a database.
    """

    if holds and connection is None:
        raise UsageError(
            f"the action {name} holds events and has no database to hold them in",
            help="say which one: @action(…, connection=…, holds=True)",
        )

    def mark(function: F) -> F:
        if (nameless := without_a_name(function)) is not None:
            raise UsageError(
                f"the action {name} takes {nameless}, which a definition cannot give by name",
                help="name every argument, or take **kwargs; a decorator keeps the signature with functools.wraps",
            )
        setattr(function, ACTION_ATTRIBUTE, Action(name, function, connection, rejects, idempotent, seals, holds))
        return function

    return mark


def load_actions(names: Sequence[str], root: Path) -> Actions:
    """Import the modules of ``[actions]`` and collect their actions.

    A dotted name is imported with the project's folder on the path; a name that ends in ``.py`` is a file below
    ``root``, loaded by its path, so that it cannot collide with any other module.
    Raises UsageError, one sentence, when a module cannot be loaded or two actions have one name.
    """
    found: dict[str, Action] = {}
    for name, module in load_modules(names, root):
        for value in list(vars(module).values()):
            one = getattr(value, ACTION_ATTRIBUTE, None)
            if not isinstance(one, Action):
                continue
            other = found.get(one.name)
            if other is not None and other.function is not one.function:
                raise UsageError(
                    f"two actions are called {one.name}: in {other.function.__module__} and in {name}",
                    help="give one of them another name",
                )
            found[one.name] = one
    return Actions(list(found.values()))


def load_modules(names: Sequence[str], root: Path) -> list[tuple[str, ModuleType]]:
    """The modules of ``[actions]``, each imported once. Raises UsageError, as :func:`load_actions`."""
    if str(root) not in sys.path:
        # Last, so that a file of the project never hides a module of the standard library.
        sys.path.append(str(root))
    with contextlib.redirect_stdout(sys.stderr):  # a command may be about to print a JSON document
        return [(name, _load_file(name, root) if name.endswith(".py") else _load_module(name)) for name in names]


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise UsageError(f"the action module {name} was not found", help="check `actions` in saga.toml") from error
        raise UsageError(f"the action module {name} needs {error.name}, which is not installed") from error
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"the action module {name} cannot be imported: {_describe_error(error)}") from error


def _load_file(name: str, root: Path) -> ModuleType:
    path = (root / name).resolve()
    if not path.is_file():
        raise UsageError(f"the action file {name} was not found", help="check `actions` in saga.toml")
    module_name = f"saga_actions_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
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
    except UsageError:
        del sys.modules[module_name]
        raise
    except Exception as error:
        del sys.modules[module_name]
        raise UsageError(f"the action file {name} cannot be loaded: {_describe_error(error)}") from error
    return module


def _describe_error(error: BaseException) -> str:
    place = ""
    if isinstance(error, SyntaxError):
        place = f" (line {error.lineno})"
    return f"{type(error).__name__}: {error}{place}"


# What a probe action may answer about an attempt that nobody can judge.


@dataclass(frozen=True, slots=True)
class Done:
    """The effect is there; ``result`` becomes the step's result."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class Absent:
    """The effect is not there."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The probe cannot tell, either."""

    message: str = ""


# What is known about the result of a step: the return annotation of its Python action.


def result_schema(action: Action | None) -> Any:
    """JSON Schema of the result as it is stored; None when the action does not say."""
    return None if action is None else _result_schema(action.function)


@lru_cache(maxsize=1024)
def _result_schema(function: Callable[..., Any]) -> Any:
    try:
        returned = get_type_hints(function, include_extras=True).get("return", Any)
    except (NameError, TypeError):
        return None
    return None if returned is type(None) else schema_of_type(returned)


def schema_of_type(annotation: Any) -> Any:
    """JSON Schema of a type's values as they are stored; None when it says nothing about them."""
    from pydantic import PydanticUserError, TypeAdapter

    if annotation is Any:
        return None
    try:
        # As written to JSON: a Decimal leaves as a text.
        return TypeAdapter(annotation).json_schema(mode="serialization")
    except (PydanticUserError, NameError, TypeError):
        # An annotation that pydantic cannot describe says nothing about the result.
        return None
