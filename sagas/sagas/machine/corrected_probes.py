"""Probes of a step that was called with arguments of an operator (`retry --with`).

A probe has to ask about the effect that the call may have had. An argument of the probe that is written as one of the
step's has the value that the step was called with. A probe that reads otherwise what a corrected argument reads would
ask about another effect, so it is not asked: the step is as one without a probe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from sagas.definition.model import Probe
from sagas.expressions import compile_expression, compile_value
from sagas.machine import corrections
from sagas.machine.state import LedgerEntry, SagaRun

Path = tuple[str | int, ...]
_NOTHING = object()


def probe_of(run: SagaRun, entry: LedgerEntry) -> Probe | None:
    """The probe of a step, which asks about the effect of its call; None: it has none, or none that may be asked."""
    step = run.step(entry)
    if step.probe is None or entry.override is None:
        return step.probe
    computed = corrections.computed(run, entry)
    written = dict(_leaves(step.do.with_ or {}))
    values = {path: _at(entry.override, path) for path in written}
    changed = {path for path, value in values.items() if computed is None or _at(computed, path) != value}
    probe, operation = step.probe, step.probe.operation
    asked = dict(_leaves(operation.with_ or {}))
    given = {
        path: value for path, text in asked.items() if (value := _given(path, text, written, values)) is not _NOTHING
    }
    corrected = [name for path in changed for name in _names(written[path])]
    open_names = [name for path, text in asked.items() if path not in given for name in _names(text)]
    for condition in filter(None, (probe.done, probe.absent, probe.result)):
        open_names += [reference.path for reference in compile_expression(condition).references]
    if any(name[: len(other)] == other or other[: len(name)] == name for name in open_names for other in corrected):
        return None
    if operation.with_ is None:
        return probe
    return replace(probe, operation=replace(operation, with_=_with(operation.with_, given)))


def _given(path: Path, text: Any, written: Mapping[Path, Any], values: Mapping[Path, Any]) -> Any:
    """The value that the step was called with where it has the same expression, or the same text at the same place."""
    same = [values[other] for other, its in written.items() if its == text and (other == path or any(_names(text)))]
    is_one = bool(same) and all(value == same[0] for value in same)
    return same[0] if is_one else _NOTHING


def _leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    items: Any = None
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    if items is None:
        yield path, value
        return
    for key, item in items:
        yield from _leaves(item, (*path, key))


def _at(value: Any, path: Path) -> Any:
    for key in path:
        try:
            value = value[key]
        except (LookupError, TypeError):
            return _NOTHING
    return value


def _with(value: Any, given: Mapping[Path, Any], path: Path = ()) -> Any:
    """The arguments with the given values at their paths."""
    if path in given:
        return given[path]
    if isinstance(value, Mapping):
        return {key: _with(item, given, (*path, key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with(item, given, (*path, key)) for key, item in enumerate(value)]
    return value


def _names(text: Any) -> list[tuple[str, ...]]:
    """The paths that the expressions in a text read."""
    if not isinstance(text, str):
        return []
    return [reference.path for _, expression in compile_value(text).expressions for reference in expression.references]
