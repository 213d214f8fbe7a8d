"""The part of many cases that `make test` runs, always the same one. `make test-long` runs the rest, too.

- `@pytest.mark.sampled` is for many cases, as of the product of several parameters: those that are left out become
  slow. Each value of each parameter, or of those that it names, stays in at least one case. `mostly_slow` is for cases
  of which certain ones show most.
- `scaled(few, many)` and `every_nth(n, cases)` are for loops inside of a test, `examples(few, many)` for Hypothesis:
  all tests of a module that imports one of them are `scaled`, so that `make test-long` runs them, with the larger
  number (its profile of Hypothesis is `long`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings

T = TypeVar("T")
SETTINGS_OF_EXAMPLES: Mapping[str, Any] = {
    "deadline": None,
    "database": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow],  # on a busy machine all are
}

settings.register_profile("short", derandomize=True, **SETTINGS_OF_EXAMPLES)
settings.register_profile("long", derandomize=False, **SETTINGS_OF_EXAMPLES)


def is_long() -> bool:
    """`make test-long` runs."""
    return settings.get_current_profile_name() == "long"


def scaled(few: T, many: T) -> T:
    """``few`` in `make test`, ``many`` in `make test-long`."""
    return many if is_long() else few


def every_nth(n: int, cases: Iterable[T], turn: int = 0) -> list[T]:
    """Every ``n``-th case, beginning at ``turn``; all of them in `make test-long`.

    Tests of one list have consecutive turns, so that together they have each case.
    """
    all_cases = list(cases)
    part = all_cases if is_long() else all_cases[turn % n :: n]
    assert part, f"none of {len(all_cases)} cases is left"
    return part


def examples(few: int, many: int, **others: Any) -> Callable[[T], T]:
    """Settings of Hypothesis with this number of examples, always the same in `make test`."""
    return settings(max_examples=scaled(few, many), **others)  # pyright: ignore[reportReturnType]


def choose(rows: Sequence[Sequence[Any]], keep: int = 1) -> list[int]:
    """Places of rows that have each value of each column, and of at least ``keep`` rows.

    A column whose values all differ is the name of its row: they are not values of a parameter.
    """
    assert rows, "there are no cases"
    keyed = [[_key(value) for value in row] for row in rows]
    columns = [place for place, column in enumerate(zip(*keyed, strict=True)) if len(set(column)) < len(column)]
    values = [{(column, row[column]) for column in columns} for row in keyed]
    missing = set().union(*values)
    uses: Counter[Hashable] = Counter()
    chosen: set[int] = set()
    while missing:
        best = max(
            range(len(rows)),
            key=lambda place: (len(values[place] & missing), -sum(uses[value] for value in values[place]), -place),
        )
        chosen.add(best)
        uses.update(values[best])
        missing -= values[best]
    spread = (place * len(rows) // keep for place in range(keep))
    for place in [*spread, *range(len(rows))]:
        if len(chosen) >= min(keep, len(rows)):
            break
        chosen.add(place)
    return sorted(chosen)


def mostly_slow(names: Iterable[str], quick: Collection[str], values: Mapping[str, Any] | None = None) -> list[Any]:
    """A parameter for each name, or its value; all but the ``quick`` ones are slow."""
    return [
        pytest.param(name if values is None else values[name], id=name, marks=[] if name in quick else pytest.mark.slow)
        for name in names
    ]


def mark_left_out(items: Iterable[pytest.Item]) -> None:
    """Make cases slow that `@pytest.mark.sampled` leaves out.

    Its arguments are the parameters whose values are covered: by default all, or with ``keep`` none, so that as many
    cases are spread over the list. With ``turns``, the tests of a module take turns with the values of this parameter:
    each has one of them. What is slow already does not count.
    """
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled") and hasattr(item, "callspec") and not item.get_closest_marker("slow"):
            groups.setdefault(item.nodeid.partition("[")[0], []).append(item)
    turns: Counter[str] = Counter()
    for group in groups.values():
        marker = group[0].get_closest_marker("sampled")
        assert marker is not None
        turn = marker.kwargs.get("turns")
        if turn is None:
            keep = marker.kwargs.get("keep")
            all_names = () if keep else tuple(sorted(_parameters(group[0])))
            chosen = choose([_values(item, marker.args or all_names) for item in group], keep or 1)
        elif turn in _parameters(group[0]):
            module = group[0].nodeid.partition("::")[0]
            chosen = _take_turns([_parameters(item) for item in group], turn, turns[module])
            turns[module] += 1
        else:
            continue
        for place, item in enumerate(group):
            if place not in chosen:
                item.add_marker(pytest.mark.slow)


def mark_scaled(items: Iterable[pytest.Item]) -> None:
    """Mark the tests of modules that import what depends on the profile."""
    for item in items:
        names = vars(getattr(item, "module", None) or pytest)
        if any(names.get(function.__name__) is function for function in (is_long, scaled, every_nth, examples)):
            item.add_marker(pytest.mark.scaled)


def _take_turns(rows: Sequence[Mapping[str, Any]], name: str, turn: int) -> list[int]:
    """Places of rows with one value of this parameter, another one for each set of values of the others."""
    values = list(dict.fromkeys(_key(row[name]) for row in rows))
    others = [tuple(_key(value) for other, value in sorted(row.items()) if other != name) for row in rows]
    numbers = {other: number for number, other in enumerate(dict.fromkeys(others))}
    wanted = {other: values[(turn + number) % len(values)] for other, number in numbers.items()}
    return [place for place, row in enumerate(rows) if _key(row[name]) == wanted[others[place]]]


def _parameters(item: pytest.Item) -> Mapping[str, Any]:
    return item.callspec.params  # pyright: ignore[reportAttributeAccessIssue]


def _values(item: pytest.Item, names: tuple[str, ...]) -> list[Any]:
    given = _parameters(item)
    unknown = set(names) - set(given)
    assert not unknown, f"{item.nodeid} has no parameters {unknown}"
    return [given[name] for name in names]


def _key(value: Any) -> Hashable:
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return (type(value), value)
