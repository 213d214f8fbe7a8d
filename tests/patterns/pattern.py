"""The folders of definitions/patterns and definitions/ported, and what each of them plays.

A folder's ``play.py`` is declarative: constants and one function, without imports, so that a copied folder is complete.
"""

from __future__ import annotations

import runpy
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Inputs = Sequence[Mapping[str, Any]]
"""Those of the sagas of one play, which run at the same time: mostly one."""

FOLDER = Path(__file__).parents[2] / "definitions/patterns"
PORTED = FOLDER.parent / "ported"
"""Sagas of other engines, in folders of the same form."""


@dataclass(frozen=True, slots=True)
class Kill:
    """A process to kill, and the moment. ``process`` is a long-running command; ``during`` says it for people.

    ``how`` is one way of kills.py, with its argument.
    """

    process: str
    during: str
    how: str
    argument: Any


@dataclass(frozen=True, slots=True)
class Play:
    """The inputs of three plays, and the invariant that must hold after each.

    ``reads`` are the arguments of ``holds`` by name: a connection and a query, a topic, a saga's view, or a path of a
    service. ``failure_state`` is how the saga ends that gets ``failure``, ``failure_note`` what else becomes of it.
    ``start`` is the saga to start; if that one only publishes events, ``follow`` gives the ids of the sagas that they
    start, from its input.
    """

    success: Inputs
    failure: Inputs
    killed: Inputs
    kill: Kill
    invariant: str
    reads: Mapping[str, tuple[str, str]]
    holds: Callable[..., bool]
    failure_state: str
    failure_note: str
    start: str
    follow: Callable[[Mapping[str, Any]], Sequence[str]] | None


@dataclass(frozen=True, slots=True)
class Pattern:
    name: str
    folder: Path
    settings: Mapping[str, Any]

    @property
    def definitions(self) -> list[Path]:
        return sorted(self.folder.glob("*.saga.yaml"))

    @property
    def uses_spark(self) -> bool:
        return "spark" in self.settings

    @property
    def uses_kafka(self) -> bool:
        return "kafka" in self.settings

    @property
    def play(self) -> Play:
        given = runpy.run_path(str(self.folder / "play.py"))
        process, during, how, argument = given["KILL"]
        return Play(
            success=_inputs(given["SUCCESS"]),
            failure=_inputs(given["FAILURE"]),
            killed=_inputs(given["KILLED"]),
            kill=Kill(process, during, how, argument),
            invariant=given["INVARIANT"],
            reads=given["READS"],
            holds=given["holds"],
            failure_state=given.get("FAILURE_STATE", "COMPENSATED"),
            failure_note=given.get("FAILURE_NOTE", ""),
            start=given.get("START", self.name),
            follow=given.get("follow"),
        )


def _inputs(declared: Any) -> Inputs:
    return declared if isinstance(declared, list) else [declared]


def patterns(folder: Path = FOLDER) -> list[Pattern]:
    """All of a folder, by name."""
    return [
        Pattern(path.parent.name, path.parent, tomllib.loads(path.read_text(encoding="utf-8")))
        for path in sorted(folder.glob("*/saga.toml"))
    ]
