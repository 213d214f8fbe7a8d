"""`saga diff`: what a change of a definition means."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saga_cli.context import load_settings
from saga_cli.exit_codes import DIFFERENCES
from saga_cli.inputs import read_definition
from saga_cli.output import echo, print_document, write_page
from sagas.errors import UsageError
from sagas.text.bounded_files import short_path

if TYPE_CHECKING:
    from sagas.definition.model import Definition
    from sagas.project import Project


def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help="a file, - for standard input, or a saga's name")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="the same")],
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="also write the table as one HTML page")] = None,
) -> int:
    """Compare two versions of a definition: what new sagas do differently, and what running ones still need.

    Exit code 8 if they differ in more than descriptive texts. A name is that of a saga of the project:

    git show main:definitions/checkout.saga.yaml | saga diff - checkout

    Both are checked against the actions and connections of the project, which must be those of both versions.
    """
    from saga_cli.render.definition_diff import diff_page, print_diff
    from sagas.presentation.definition_diff import compare_definitions
    from sagas.project import Project

    if old == new == "-":
        raise UsageError("only one of OLD and NEW can be standard input")
    project = Project(load_settings())
    difference = compare_definitions(_definition(project, old), _definition(project, new))
    if html is not None:
        write_page(html, diff_page(difference))
    print_document(difference.to_json(), human=lambda: print_diff(difference))
    if html is not None:
        echo(f"written: {html}")
    return 0 if difference.is_same else DIFFERENCES


def _definition(project: Project, source: str) -> Definition:
    """The definition in a file, on standard input, or of a saga of the project. Raises UsageError if it has errors."""
    path = Path(source)
    if os.path.isdir(source):
        raise UsageError(f"{short_path(path)} is a folder", help="give a file, or the name of a saga")
    if source == "-" or os.path.exists(source):  # unlike those of Path, they take a name that is too long
        return read_definition(path, project)
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        raise UsageError(f"there is no file {short_path(path)}")
    return project.definition(source)
