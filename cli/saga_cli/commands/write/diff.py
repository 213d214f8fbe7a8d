"""`saga diff`: what a change of a definition means."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from saga_cli.context import load_settings
from saga_cli.exit_codes import DIFFERENCES
from saga_cli.inputs import read_definition
from saga_cli.output import echo, print_document, warn, write_page
from saga_cli.revisions.git import RevisionRange, parse_range
from sagas.errors import UsageError
from sagas.text.bounded_files import short_path

if TYPE_CHECKING:
    from sagas.definition.model import Definition
    from sagas.presentation.project_diff import ProjectDefinitions
    from sagas.project import Project


def diff(
    old: Annotated[
        str, typer.Argument(metavar="OLD", help="a file, - for standard input, a saga's name, or REVISION..REVISION")
    ],
    new: Annotated[
        str | None, typer.Argument(metavar="[NEW]", help="the same; without it OLD names git revisions")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="also write the table as one HTML page")] = None,
    format: Annotated[
        Literal["text", "github", "sarif"], typer.Option(help="of revisions: annotations for a pull request")
    ] = "text",
) -> int:
    """Compare two versions of a definition: what new sagas do differently, and what running ones still need.

    Exit code 8 if they differ in more than descriptive texts. A name is that of a saga of the project:

    git show main:definitions/checkout.saga.yaml | saga diff - checkout

    saga diff main... compares all sagas of the project with those where this branch left main; main.. with main
    itself, v1..v2 two revisions. Each is checked against its own actions and connections; two files against those of
    the project, which must be those of both.
    """
    if new is not None:
        if format != "text":
            raise UsageError("--format is for revisions: saga diff main... --format github")
        return _compare_definitions(old, new, html)
    revisions = parse_range(old)
    if revisions is None:
        raise UsageError(
            "NEW is missing: give two files or sagas, or git revisions",
            help="saga diff main... compares all sagas of this branch with those of main",
        )
    return _compare_revisions(revisions, html, format)


def _compare_definitions(old: str, new: str, html: Path | None) -> int:
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


def _compare_revisions(revisions: RevisionRange, html: Path | None, format: Literal["text", "github", "sarif"]) -> int:
    from saga_cli.render.project_diff import change_annotations, print_project_diff, project_diff_page
    from saga_cli.revisions.definitions import read_definitions, read_separately
    from saga_cli.revisions.git import Repository
    from sagas.presentation.project_diff import compare_projects

    settings = load_settings()
    if settings.config_file is None:
        raise UsageError("revisions are compared in a project", help="choose one with --config DIR")
    repository = Repository(settings.root)
    config = settings.config_file.relative_to(repository.root)

    def at(commit: str, revision: str, config: Path) -> ProjectDefinitions:
        for definitions in settings.definitions:
            repository.require_no_submodule(commit, definitions)
        with repository.checked_out(commit) as folder:
            return read_separately(folder / config, folder.parent / "definitions.json", revision)

    old = repository.commit(revisions.old)
    if revisions.since_fork:
        old = repository.fork_point(revisions.old, revisions.new or "HEAD")
    new = None if revisions.new is None else repository.commit(revisions.new)
    earlier = repository.earlier_path(config, old, new)
    if earlier is None:
        warn(
            f"{revisions.old} has no {short_path(config)}, and git knows no folder from which it was moved, so every"
            " saga is new; git sees a move that is committed, or added by `git add`"
        )
    before = at(old, revisions.old, earlier or config)
    now = read_definitions(settings) if new is None else at(new, str(revisions.new), config)
    difference = compare_projects(before, now)
    if html is not None:
        write_page(html, project_diff_page(str(revisions), difference))
    if format == "text":
        print_document(difference.to_json(), human=lambda: print_project_diff(difference))
    else:
        folder = config.parent.as_posix()
        print(change_annotations(difference, format, "" if folder == "." else f"{folder}/"), flush=True)
    if html is not None and format == "text":
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
