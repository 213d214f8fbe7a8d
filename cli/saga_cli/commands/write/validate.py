"""`saga validate`: what is wrong with the definitions, before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from saga_cli.context import global_options
from saga_cli.definition_checks import check_files, no_definitions_error, read_settings
from saga_cli.output import make_console, print_list, wants_json

if TYPE_CHECKING:
    from sagas.definition.diagnostics import Diagnostic


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
    from sagas.definition.diagnostic_formats import format_diagnostics
    from sagas.definition.diagnostics import with_warnings_as_errors

    settings, mistakes = read_settings(global_options().config)
    checked = check_files(settings, mistakes, [Path(path) for path in paths or ()])
    files, diagnostics = checked.files, list(checked.diagnostics)
    if not files and not diagnostics:
        raise no_definitions_error(settings, paths or ())
    diagnostics = with_warnings_as_errors(diagnostics) if strict else diagnostics
    if format in ("github", "sarif") or (format == "json" and not wants_json()):
        print(format_diagnostics(diagnostics, format), flush=True)
    else:
        print_list(
            [diagnostic.to_json() for diagnostic in diagnostics],
            human=lambda _: _print_diagnostics(diagnostics, len(files)),
        )
    return int(any(diagnostic.severity == "error" for diagnostic in diagnostics))


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
