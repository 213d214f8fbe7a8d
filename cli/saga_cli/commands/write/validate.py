"""`saga validate`: what is wrong with the definitions, before anything runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from saga_cli.context import global_options
from saga_cli.output import make_console, print_list, wants_json
from sagas.errors import UsageError

if TYPE_CHECKING:
    from sagas.definition.diagnostics import Diagnostic, Position
    from sagas.settings import Settings

_UNKNOWN_ACTION = "SAGA401"
"""May be an action of a module that cannot be imported."""


def validate(
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="[PATH]…", help="files or folders; default: those of saga.toml")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="turn every warning into an error")] = False,
    format: Annotated[Literal["text", "json", "github", "sarif"], typer.Option(help="output format")] = "text",
) -> int:
    """Check definitions without running anything. Exit code 1 if there is an error.

    With PATHs only their diagnostics are printed; nested definitions are looked up in the project.
    """
    from saga_spark.settings import spark_settings
    from sagas.definition.diagnostic_formats import format_diagnostics
    from sagas.definition.diagnostics import with_warnings_as_errors
    from sagas.settings.loader import load_valid_settings

    settings, mistakes = load_valid_settings(global_options().config)
    try:
        spark_settings(settings)  # the worker would refuse them
    except UsageError as error:
        mistakes.append(error)
    files, diagnostics = _check_files(settings, [Path(path) for path in paths or ()])
    diagnostics = [*_settings_findings("SAGA142", settings, mistakes), *diagnostics]
    if not files and not diagnostics:
        where = ", ".join(paths or [str(_relative_path(path)) for path in settings.definitions])
        raise UsageError(
            f"there is no definition in {where}",
            help="create a file NAME.saga.yaml, or a project with saga init DIR",
        )
    diagnostics = with_warnings_as_errors(diagnostics) if strict else diagnostics
    if format in ("github", "sarif") or (format == "json" and not wants_json()):
        print(format_diagnostics(diagnostics, format), flush=True)
    else:
        print_list(
            [diagnostic.to_json() for diagnostic in diagnostics],
            human=lambda _: _print_diagnostics(diagnostics, len(files)),
        )
    return int(any(diagnostic.severity == "error" for diagnostic in diagnostics))


def _check_files(settings: Settings, paths: list[Path]) -> tuple[list[Path], list[Diagnostic]]:
    """The checked files and their diagnostics, with paths relative to the current folder."""
    from dataclasses import replace

    from sagas.actions.registry import load_importable_actions
    from sagas.definition.loader import find_definition_files, load_definitions
    from sagas.project import Project
    from sagas.settings.effect_declarations import wrong_declarations
    from sagas.settings.trust import require_own_modules

    require_own_modules(settings.actions, settings.root)
    actions, mistakes = load_importable_actions(settings.actions, settings.root)
    project = Project(settings, actions)
    # A folder that is only the default need not exist; a path of the command line must.
    files = find_definition_files(paths or [folder for folder in settings.definitions if folder.exists()])
    everything = list(files)
    if paths:
        # The rest of the project is read as well, so that nested sagas and their names are known. A name that is used
        # twice is reported for the file that is read last. A file from elsewhere may replace one of the project.
        project_files = find_definition_files(definition for definition in settings.definitions if definition.exists())
        own, given = {path.resolve() for path in project_files}, {path.resolve() for path in files}
        everything = [path for path in files if path.resolve() not in own]
        everything += [path for path in project_files if path.resolve() not in given]
        everything += [path for path in files if path.resolve() in own]
    definitions, diagnostics = load_definitions(everything, project.context)
    wanted = {str(path) for path in files}
    diagnostics = [
        *_settings_findings("SAGA142", settings, list(wrong_declarations(settings, definitions))),
        *_settings_findings("SAGA143", settings, mistakes),
        *_missing_schema_files(settings),
        *(
            diagnostic
            for diagnostic in diagnostics
            if diagnostic.file in wanted and not (mistakes and diagnostic.code == _UNKNOWN_ACTION)
        ),
    ]
    return files, [replace(diagnostic, file=str(_relative_path(Path(diagnostic.file)))) for diagnostic in diagnostics]


def _settings_findings(code: str, settings: Settings, mistakes: Sequence[UsageError]) -> list[Diagnostic]:
    """A finding for each mistake, at the line of saga.toml with which its message begins."""
    from sagas.definition.diagnostics import Position, Report

    report = Report(str(_relative_path(settings.config_file or settings.root / "saga.toml")))
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


def _relative_path(path: Path) -> Path:
    """The path from here, where it lies below."""
    try:
        return path.resolve().relative_to(Path.cwd())
    except ValueError:
        return path


def _print_diagnostics(diagnostics: Sequence[Diagnostic], files: int) -> None:
    from rich.text import Text

    out = make_console()
    for diagnostic in diagnostics:
        red = diagnostic.severity == "error"
        line = Text.assemble(
            (f"{diagnostic.file}:{diagnostic.line}:{diagnostic.column}", "bold"),
            " ",
            (diagnostic.code, "dim"),
            " ",
            (diagnostic.severity, "bold red" if red else "yellow"),
            f" {diagnostic.message}",
        )
        out.print(line, soft_wrap=True)
        if diagnostic.help:
            out.print(Text(f"    {diagnostic.help}", style="dim"), soft_wrap=True)
    errors = sum(diagnostic.severity == "error" for diagnostic in diagnostics)
    warnings = len(diagnostics) - errors
    if diagnostics:
        out.print()
    what = "1 definition" if files == 1 else f"{files} definitions"
    if not diagnostics:
        out.print(Text.assemble(("✔ ", "green"), f"{what}, no problems found"))
        return
    counts = [_count(errors, "error"), _count(warnings, "warning")]
    mark = ("✖ ", "red") if errors else ("✔ ", "yellow")
    out.print(Text.assemble(mark, f"{what}: " + ", ".join(count for count in counts if count)))


def _count(number: int, word: str) -> str:
    return "" if not number else f"1 {word}" if number == 1 else f"{number} {word}s"
