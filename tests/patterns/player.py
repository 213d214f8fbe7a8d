"""Plays a pattern: a failure, a killed process and a success; the invariant must hold after each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.helpers.waiting import until_blocking
from tests.patterns.kills import KILLS
from tests.patterns.pattern import Inputs, Pattern, Play
from tests.patterns.stage import Servers, Stage

ANY_END = (0, 3, 4, 5)
"""Exit codes of `saga watch`: completed, compensated, parked, residue."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table of `make patterns`: how the sagas ended, what was killed, and what was checked."""

    pattern: str
    success: str
    failure: str
    killed: str
    after_kill: str
    invariant: str


def play(pattern: Pattern, servers: Servers, folder: Path) -> Row:
    """Raises AssertionError when a saga ends otherwise than declared, or the invariant does not hold."""
    declared = pattern.play
    with Stage(pattern, servers, folder) as stage:
        # The success comes last: what a topic delivers again after the kill is processed before it.
        failure = _end(stage, _start(stage, declared, "failure", declared.failure), declared.failure_state)
        _check_invariant(stage, declared)
        after_kill = _end(stage, _start_and_kill(stage, declared), "COMPLETED")
        _check_invariant(stage, declared)
        success = _end(stage, _start(stage, declared, "success", declared.success), "COMPLETED")
        _check_invariant(stage, declared)
    killed = f"{declared.kill.process}: {declared.kill.during}"
    failure = ", ".join(filter(None, (failure, declared.failure_note)))
    return Row(pattern.name, success, failure, killed, after_kill, declared.invariant)


def _start(stage: Stage, declared: Play, play: str, inputs: Inputs) -> Sequence[str]:
    """Start a saga for each input; returns the ids of the sagas that are to be followed."""
    named = stage.definition(declared.start).id is None
    started: list[str] = []
    for number, given in enumerate(inputs, 1):
        id = ["--id", f"{stage.pattern.name}-{play}" + (f"-{number}" if number > 1 else "")] if named else []
        printed = stage.saga("start", declared.start, "--input", json.dumps(given), *id, "-o", "json")
        started += [json.loads(printed)["id"]] if declared.follow is None else declared.follow(given)
    return started


def _start_and_kill(stage: Stage, declared: Play) -> Sequence[str]:
    started: list[str] = []
    kill = declared.kill
    KILLS[kill.how](
        stage, kill.process, lambda: started.extend(_start(stage, declared, "killed", declared.killed)), kill.argument
    )
    stage.start(kill.process)
    return started


def _end(stage: Stage, sagas: Sequence[str], expected: str) -> str:
    """Wait until all of them have ended in the expected state, and return it."""
    for saga in sagas:
        until_blocking(lambda saga=saga: stage.was_started(saga), f"the start of {saga}")
        view = json.loads(stage.saga("watch", saga, "--until", "parked", "-o", "json", codes=ANY_END))
        assert view["state"] == expected, json.dumps(view, indent=1)
    return expected


def _check_invariant(stage: Stage, declared: Play) -> None:
    """Events take a while to arrive, so the invariant is given time to come true."""

    def holds() -> bool:
        values.update({name: stage.read(*source) for name, source in declared.reads.items()})
        return declared.holds(**values)

    values: dict[str, Any] = {}
    try:
        until_blocking(holds, declared.invariant)
    except AssertionError as error:
        raise AssertionError(f"{error}: {values}") from None
