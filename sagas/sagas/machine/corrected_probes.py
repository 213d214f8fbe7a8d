"""Probes of a step that was called with arguments of an operator (`retry --with`).

A probe has to ask about the call that was made. The author has written it for all values of the names that the step's
arguments read, so it may be asked if the corrected call is one that the definition makes with other values of some
names, and if the probe follows from the arguments of the call: then it gets these values. A corrected argument that is
a literal, or more than the reading of a name, or not in the definition at all, may be anywhere in the probe, in other
words. Then only a probe that takes all arguments of the call, and adds nothing, is asked. Without its probe the step is
as one that has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sagas.definition.model import Probe
from sagas.expressions import Expression, compile_expression, compile_value
from sagas.expressions.template_syntax import split_template
from sagas.machine import corrections
from sagas.machine.state import Entry, SagaRun
from sagas.text.exact_json import encode_json

Path = tuple[str | int, ...]
Name = tuple[str, ...]

_OF_THE_CALL = ("step", "saga", "response")
"""Names with which a probe may ask about any call: its key, its saga, and the answer."""


def probe_of(run: SagaRun, entry: Entry) -> Probe | None:
    """The probe of a step, which asks about the effect of its call; None if it has none, or none that may be asked."""
    step = run.step(entry)
    if step.probe is None or entry.override is None:
        return step.probe
    computed, written = corrections.computed(run, entry), step.do.with_ or {}
    leaves = [_leaf(run, entry, path, value) for path, value in _values(written)]
    changed = [leaf for leaf in leaves if computed is None or not _same(computed, entry.override, leaf.path)]
    added = any(not _is_written(path, leaves) for path, _ in _values(entry.override))
    if not changed and not added:
        return step.probe
    probe, operation = step.probe, step.probe.operation
    conditions = [condition for condition in (probe.done, probe.absent, probe.result) if condition is not None]
    if operation.with_ is None and not conditions:
        return probe
    if added or not _is_of_other_values(leaves, changed, entry.override):
        return None
    given: dict[Path, Any] = {}
    for path, value in _values(operation.with_ or {}):
        asked = _leaf(run, entry, path, value)
        source = next((leaf for leaf in changed if leaf.read is not None and leaf.read == asked.read), None)
        if source is not None:
            given[path] = _at(entry.override, source.path)
        elif not _follows(asked, leaves, changed):
            return None
    if not _follows(_reading(run, entry, (), [compile_expression(text) for text in conditions]), leaves, changed):
        return None
    if operation.with_ is None:
        return probe
    return replace(probe, operation=replace(operation, with_=_with(operation.with_, given)))


def note(run: SagaRun, entry: Entry) -> str | None:
    """The warning before a correction of the step's arguments, which ``entry`` has already; None if its probe, should
    it have one, may be asked.
    """
    if run.step(entry).probe is None or probe_of(run, entry) is not None:
        return None
    return (
        f"the probe of {entry.id} {corrections.NOT_FOLLOWED} and is not asked about this call: if an attempt ends "
        "without an answer, the call may have happened, and only a look at its system tells"
    )


def parking_reason(run: SagaRun, entry: Entry, reason: str) -> str:
    """The reason for parking a step, and why its probe did not answer the question."""
    unsure = entry.outcome == "unknown" and not entry.resolved
    if not unsure or run.step(entry).probe is None or probe_of(run, entry) is not None:
        return reason
    return (
        f"{reason}; its probe was not asked, because it does not follow the arguments of --with and might find the "
        "effect of another call: look there"
    )


@dataclass(frozen=True)
class _Leaf:
    """A value in the arguments as they are written. ``read``: the name, if it is the reading of one and no more;
    ``derived``: the names from which the values of ``names`` come.
    """

    path: Path
    names: tuple[Name, ...] = ()
    derived: tuple[Name, ...] = ()
    read: Name | None = None

    def is_related(self, other: _Leaf) -> bool:
        """True if a value of one may come with a value of the other."""
        return (
            _overlap(self.names, other.names)
            or _overlap(self.names, other.derived)
            or _overlap(self.derived, other.names)
        )


def _leaf(run: SagaRun, entry: Entry, path: Path, value: Any) -> _Leaf:
    if not isinstance(value, str):
        return _Leaf(path)
    expressions = [expression for _, expression in compile_value(value).expressions]
    leaf = _reading(run, entry, path, expressions)
    is_read = len(split_template(value)) == 1 and [each.source for each in expressions] == [
        ".".join(name) for name in leaf.names
    ]
    return replace(leaf, read=leaf.names[0]) if is_read and leaf.names else leaf


def _reading(run: SagaRun, entry: Entry, path: Path, expressions: list[Expression]) -> _Leaf:
    names = [reference.path for expression in expressions for reference in expression.references]
    derived: list[Name] = []
    for root, source in (("item", run.step(entry).for_each), ("index", run.step(entry).for_each)):
        if any(name[0] == root for name in names):
            derived += _names(source)
    if any(name[0] == "index" for name in names):
        derived.append(("item",))
    if any(name[0] == "saga" for name in names):
        derived += _names(run.definition.id)
    return _Leaf(path, tuple(dict.fromkeys(names)), tuple(derived))


def _names(source: Any) -> list[Name]:
    return [
        reference.path for _, expression in compile_value(source).expressions for reference in expression.references
    ]


def _is_of_other_values(leaves: list[_Leaf], changed: list[_Leaf], given: Mapping[str, Any]) -> bool:
    """True if the definition makes this call with other values of the names that the changed arguments read."""
    for leaf in changed:
        if leaf.read is None or _at(given, leaf.path) is _NOTHING:
            return False
        for other in leaves:
            if not other.is_related(leaf):
                continue
            if other.read != leaf.read or not _same(given, given, leaf.path, other.path):
                return False
    return True


def _follows(asked: _Leaf, leaves: list[_Leaf], changed: list[_Leaf]) -> bool:
    """True if the value is the same for the corrected call: it reads only arguments that were sent as computed."""
    if any(asked.is_related(leaf) for leaf in changed):
        return False
    sent = [leaf.read for leaf in leaves if leaf.read is not None and leaf not in changed]
    return all(name[0] in _OF_THE_CALL or any(name[: len(read)] == read for read in sent) for name in asked.names)


def _overlap(names: tuple[Name, ...], others: tuple[Name, ...]) -> bool:
    return any(name[: len(other)] == other or other[: len(name)] == name for name in names for other in others)


_NOTHING = object()


def _values(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The values in the arguments that have no parts, with their paths."""
    items: Any = None
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    if not items or not value:
        if path:
            yield path, value
        return
    for key, item in items:
        yield from _values(item, (*path, key))


def _is_written(path: Path, leaves: list[_Leaf]) -> bool:
    return any(path[: len(leaf.path)] == leaf.path for leaf in leaves)


def _at(value: Any, path: Path) -> Any:
    for key in path:
        try:
            value = value[key]
        except (LookupError, TypeError):
            return _NOTHING
    return value


def _same(value: Any, other: Any, path: Path, other_path: Path | None = None) -> bool:
    first, second = _at(value, path), _at(other, path if other_path is None else other_path)
    if first is _NOTHING or second is _NOTHING:
        return first is second
    return encode_json(first) == encode_json(second)


def _with(value: Any, given: Mapping[Path, Any], path: Path = ()) -> Any:
    """The arguments with the given values at their paths."""
    if path in given:
        return given[path]
    if isinstance(value, Mapping):
        return {key: _with(item, given, (*path, key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with(item, given, (*path, key)) for key, item in enumerate(value)]
    return value
