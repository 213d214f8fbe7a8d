"""Random runs, each named by its seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from tests.unit.engine.machine_properties.oracle.ledger import Violation

T = TypeVar("T")


def valid_runs(simulate: Callable[[int], T | None], seeds: Iterable[int]) -> Iterator[T]:
    """Results of the runs, except None. Raises AssertionError with the seed of one that breaks a rule."""
    for seed in seeds:
        try:
            run = simulate(seed)
        except Violation as violation:
            raise AssertionError(f"seed {seed}: {violation}") from violation
        if run is not None:
            yield run


def broken_rules(simulate: Callable[[int], object], seeds: Iterable[int]) -> Iterator[str]:
    """The rules that the runs break. A crash of a mutated machine does not count: a rule has to be named."""
    for seed in seeds:
        try:
            simulate(seed)
        except Violation as violation:
            yield violation.rule
        except (AssertionError, KeyError, AttributeError):
            continue
