"""Reads all definitions of a project; those of an earlier revision in a process of their own.

An earlier revision has its own actions, in modules of the same names, which one process cannot import twice.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sagas.errors import UsageError
from sagas.settings.python_processes import python_command
from sagas.text.exact_json import decode_json, encode_json
from sagas.text.printable import printable_line
from sagas.text.shortening import shorten

if TYPE_CHECKING:
    from sagas.definition.diagnostics import Diagnostic
    from sagas.presentation.project_diff import ProjectDefinitions
    from sagas.settings import Settings

_TIMEOUT = 300
"""Seconds in which an earlier revision must have been read."""


def read_definitions(settings: Settings) -> ProjectDefinitions:
    """The definitions of a project with their places. Raises UsageError if its actions cannot be imported."""
    from dataclasses import replace

    from sagas.presentation.change_places import FieldPlace
    from sagas.presentation.project_diff import PlacedDefinition, ProjectDefinitions
    from sagas.project import Project

    project = Project(settings)

    def shown(file: str) -> str:
        path = Path(os.path.abspath(file))  # a symbolic link is shown where it is
        return path.relative_to(settings.root).as_posix() if path.is_relative_to(settings.root) else path.name

    def placed(draft: Any) -> PlacedDefinition:
        steps = {step.id: FieldPlace.of(step.parsed.node) for step in draft.steps}
        return PlacedDefinition(
            project.definitions[draft.definition.saga], shown(draft.file), FieldPlace.of(draft.root.node), steps
        )

    errors: list[Diagnostic] = [
        replace(diagnostic, file=shown(diagnostic.file))
        for diagnostic in project.diagnostics
        if diagnostic.severity == "error"
    ]
    return ProjectDefinitions({draft.definition.saga: placed(draft) for draft in project.drafts}, errors)


def read_separately(config: Path, output: Path, revision: str) -> ProjectDefinitions:
    """The definitions of the project with this saga.toml, read by a process of their own, which writes ``output``.

    Raises UsageError, with the name of the ``revision``, if it cannot be read.
    """
    from sagas.presentation.project_diff import ProjectDefinitions

    if not config.is_file():
        return ProjectDefinitions({}, [])
    try:
        done = subprocess.run(
            python_command(__name__, str(config), str(output)),
            cwd=config.parent, capture_output=True, check=False, timeout=_TIMEOUT,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise UsageError(f"the project at {revision} could not be read within {_TIMEOUT} s") from None
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["its process has ended"]
        raise UsageError(f"the project at {revision} cannot be read: {printable_line(shorten(lines[-1], 500))}")
    return ProjectDefinitions.from_json(decode_json(output.read_bytes()))


def _main(config: str, output: str) -> None:
    from sagas.settings import load_settings

    try:
        definitions = read_definitions(load_settings(config=config))
    except UsageError as error:
        sys.exit(error.message)
    Path(output).write_bytes(encode_json(definitions.to_json()))


if __name__ == "__main__":
    _main(*sys.argv[1:])
