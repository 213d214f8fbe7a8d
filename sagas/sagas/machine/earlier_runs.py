"""Earlier runs of a saga in the state of its current run, which repeats them. See :mod:`sagas.machine.earlier`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class EarlierRuns:
    """Knowledge of a run about the runs of its saga before it.

    ``exist``: there may be one that has made the calls of this run. ``since``: the earliest time at which one of a
    nested saga may have begun, seconds since the epoch, as its parent says; None if it says nothing. ``generations``:
    the least generation of an entry, by entry id, where one of them got further; an entry that has left traces is there
    also with 1. ``pivot_in_place``: the saga is past its commit point, to which this run has not come again, so that
    nothing may be undone; ``commit_is_unknown``: nobody knows whether it is. ``told_committed``: what an operator says
    of that.

    Two sources tell of effects ahead of this run, in steps to which it has not come. ``records`` has the steps of the
    earlier runs whose state is known, as in a snapshot. If the state of one is lost (``state_is_lost``), guards and
    probes are asked. ``children`` are the nested sagas of both, by entry id.

    ``open_effects``: the entries whose effects were open in a guard before this run, with their generations;
    ``in_guards``: all entries of which a guard had a record before. ``undone``: the entries, with their generations, of
    which a guard, a reply or the ledger tells that their undo was made, or whose undo command was sent.
    ``undecided_undos``: the entries, with their generations, whose undo in another database or service a guard has
    decided, while nobody knows whether it was made: an answer `late` does not tell that such an entry is undone.
    ``told_undone``: those of which an operator says that it was made. ``undecided``: the entries about which an
    operator was asked in a run that is deleted, as far as the ledger tells. ``decisions``: the steps that one of them
    has left out (False), and what each `finish` has decided; ``asked``: the steps about which an operator was asked,
    because nobody knows whether one has left them out. ``residue`` and ``reason`` are those of the earlier runs; a
    rollback of this one goes on with them.
    """

    exist: bool = False
    since: float | None = None
    generations: dict[str, int] = field(default_factory=dict[str, int])
    pivot_in_place: bool = False
    commit_is_unknown: bool = False
    told_committed: bool | None = None
    state_is_lost: bool = False
    records: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    children: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    open_effects: dict[str, int] = field(default_factory=dict[str, int])
    in_guards: list[str] = field(default_factory=list[str])
    undone: dict[str, int] = field(default_factory=dict[str, int])
    undecided_undos: dict[str, int] = field(default_factory=dict[str, int])
    told_undone: dict[str, int] = field(default_factory=dict[str, int])
    undecided: list[str] = field(default_factory=list[str])
    decisions: dict[str, bool] = field(default_factory=dict[str, bool])
    asked: list[str] = field(default_factory=list[str])
    residue: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    reason: dict[str, Any] | None = None
