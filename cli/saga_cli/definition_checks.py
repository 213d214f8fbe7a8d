"""Checks definition files with the settings and actions of their project."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sagas.definition.diagnostics import Diagnostic, Position
    from sagas.definition.model import Definition
    from sagas.errors import UsageError
    from sagas.project import Project
    from sagas.settings import Settings

_UNKNOWN_ACTION = "SAGA401"
"""May be an action of a module that cannot be imported."""


@dataclass(frozen=True, slots=True)
class CheckedFiles:
    """``files`` were checked, with these ``diagnostics``, whose files are relative to the current folder.

    ``definitions`` are those without errors, by saga name, of the whole ``project``.
    """

    project: Project
    files: Sequence[Path]
    definitions: Mapping[str, Definition]
    diagnostics: Sequence[Diagnostic]


def read_settings(config: str | None) -> tuple[Settings, list[UsageError]]:
    """The settings of a project as far as they are valid, and their mistakes."""
    from saga_spark.settings import spark_settings
    from sagas.errors import UsageError
    from sagas.settings.loader import load_valid_settings

    settings, mistakes = load_valid_settings(config)
    try:
        spark_settings(settings)  # the worker would refuse them
    except UsageError as error:
        mistakes.append(error)
    return settings, mistakes


def no_definitions_error(settings: Settings, paths: Sequence[str] = ()) -> UsageError:
    """The error of a project without a definition; ``paths``: where it was looked for, by default in its folders."""
    from sagas.errors import UsageError

    where = ", ".join(paths or [str(relative_path(path)) for path in settings.definitions])
    return UsageError(
        f"there is no definition in {where}", help="create a file NAME.saga.yaml, or a project with saga init DIR"
    )


def check_files(settings: Settings, mistakes: Sequence[UsageError], paths: Sequence[Path] = ()) -> CheckedFiles:
    """Check the files of a project, or of ``paths``; ``mistakes`` are those of the settings.

    Raises UsageError if a file belongs to another user.
    """
    from dataclasses import replace

    from sagas.actions.registry import load_importable_actions
    from sagas.definition.loader import find_definition_files, load_definitions
    from sagas.project import Project
    from sagas.settings.effect_declarations import wrong_declarations
    from sagas.settings.trust import require_own, require_own_modules

    require_own_modules(settings.actions, settings.root)
    actions, unimportable = load_importable_actions(settings.actions, settings.root)
    project = Project(settings, actions)
    # A folder that is only the default need not exist; a path of the command line must.
    files = find_definition_files(paths or [folder for folder in settings.definitions if folder.exists()])
    everything, replacing = list(files), list[Path]()
    if paths:
        # The rest of the project is read as well, so that nested sagas and their names are known. A file from elsewhere
        # may replace one of the project.
        project_files = find_definition_files(definition for definition in settings.definitions if definition.exists())
        own, given = {path.resolve() for path in project_files}, {path.resolve() for path in files}
        replacing = [path for path in files if path.resolve() not in own]
        everything += [path for path in project_files if path.resolve() not in given]
    for path in everything:
        require_own(path)
    definitions, diagnostics = load_definitions(everything, project.context, replacing=replacing)
    wanted = {str(path) for path in files}
    diagnostics = [
        *_settings_findings("SAGA142", settings, mistakes),
        *_settings_findings("SAGA142", settings, list(wrong_declarations(settings, definitions))),
        *_settings_findings("SAGA143", settings, unimportable),
        *_missing_schema_files(settings),
        *(
            diagnostic
            for diagnostic in diagnostics
            if diagnostic.file in wanted and not (unimportable and diagnostic.code == _UNKNOWN_ACTION)
        ),
    ]
    shown = [replace(diagnostic, file=str(relative_path(Path(diagnostic.file)))) for diagnostic in diagnostics]
    return CheckedFiles(project, files, definitions, shown)


def _settings_findings(code: str, settings: Settings, mistakes: Sequence[UsageError]) -> list[Diagnostic]:
    """A finding for each mistake, at the line of saga.toml with which its message begins."""
    from sagas.definition.diagnostics import Position, Report

    report = Report(str(relative_path(settings.config_file or settings.root / "saga.toml")))
    for mistake in mistakes:
        placed = re.match(r"saga\.toml(?::(\d+))?: ", mistake.message)
        line = int(placed[1]) if placed is not None and placed[1] else 1
        report.add(code, Position(line, 1), mistake.message[placed.end() if placed else 0 :], mistake.help)
    return list(report.diagnostics)


def _missing_schema_files(settings: Settings) -> Iterator[Diagnostic]:
    """A finding for each connection whose `schema` names no file: `saga setup` would end there."""
    from sagas.definition.diagnostics import Report

    report = Report(str(settings.config_file))
    for connection in settings.sql_connections():
        name, file = connection.name, connection.schema_file
        if file is not None and not file.is_file():
            message = f"the `schema` of the connection `{name}` names {file.name}, which is not a file in {file.parent}"
            help = "create it, or correct the path, which begins at the folder of saga.toml"
            report.add("SAGA110", _position_in_settings(settings, name), message, help)
    yield from report.diagnostics


def _position_in_settings(settings: Settings, connection: str) -> Position:
    """The place in saga.toml of the `schema` of a connection; its beginning if a variable or an inline table has it."""
    from sagas.definition.diagnostics import Position

    header = ""
    lines = settings.config_file.read_text(encoding="utf-8").splitlines() if settings.config_file else []
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("["):
            header = line.strip().replace('"', "").replace(" ", "")
        elif header.startswith(f"[connections.{connection}]") and re.match(r"\s*schema\s*=", line):
            return Position(number, len(line) - len(line.lstrip()) + 1)
    return Position(1, 1)


def relative_path(path: Path, folder: Path | None = None) -> Path:
    """The path from ``folder``, by default the current one, if it lies below."""
    try:
        return path.resolve().relative_to((folder or Path.cwd()).resolve())
    except ValueError:
        return path
