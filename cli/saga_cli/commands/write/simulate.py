"""`saga simulate`: every failure point without a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saga_cli.context import load_settings
from saga_cli.inputs import read_input
from saga_cli.output import echo, print_list, write_page
from sagas.definition.model import Definition
from sagas.errors import SagaError, UsageError
from sagas.simulation import Environment, FailurePoint, sample_input

if TYPE_CHECKING:
    from sagas.project import Project


def simulate(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="the saga's name; default: all, each with a sample input")
    ] = None,
    input: Annotated[str | None, typer.Option(help="JSON, @file or -; default: a sample from the schema")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="also write the table as one HTML page")] = None,
) -> int:
    """Simulate every failure point: each step × each fault. Exit code 1 if one of them leaves a residue."""
    from sagas.project import Project

    project = Project(load_settings())
    if name is not None:
        return _simulate_one(project, project.definition(name), input, html)
    if input is not None or html is not None:
        raise UsageError("--input and --html are for one saga: saga simulate NAME --input …")
    return _simulate_all(project)


def _simulate_one(project: Project, definition: Definition, input: str | None, html: Path | None) -> int:
    from saga_cli.render.simulation import print_failure_table
    from sagas.simulation import Script, environment_of, failure_points
    from sagas.simulation import simulate as simulate_run

    outside = environment_of(project)
    given, made_up = read_or_sample_input(definition, input, outside)
    script = Script(input_is_sample=made_up)
    cells = failure_points(definition, given, script, outside)
    usual = simulate_run(definition, given, script, outside)
    if html is not None:
        from saga_cli.render.simulation import failure_table_page

        write_page(html, failure_table_page(definition, given, cells))
    print_list(
        [cell.to_json() for cell in cells],
        human=lambda _: print_failure_table(definition, given, cells, usual.steps, is_sample=made_up),
    )
    if html is not None:
        echo(f"written: {html}")
    return int(any(cell.residue for cell in cells))


def _simulate_all(project: Project) -> int:
    """Simulate each saga with a sample input. One whose input cannot be made up is named, and does not fail."""
    from saga_cli.render.simulation import print_summaries
    from sagas.simulation import Script, environment_of, failure_points

    if not project.definitions:
        raise UsageError("there is no valid definition to simulate", help="run `saga validate` for all diagnostics")
    outside = environment_of(project)
    cells: dict[str, list[FailurePoint]] = {}
    needs_input: dict[str, str] = {}
    for saga, definition in sorted(project.definitions.items()):
        try:
            given, _ = read_or_sample_input(definition, None, outside)
            cells[saga] = failure_points(definition, given, Script(input_is_sample=True), outside)
        except SagaError as error:
            needs_input[saga] = error.message
    print_list(
        [{"saga": saga, **cell.to_json()} for saga, each in cells.items() for cell in each],
        human=lambda _: print_summaries(cells, needs_input),
    )
    return int(any(cell.residue for each in cells.values() for cell in each))


# The input of commands that only play: given, or made up from the saga's schema.
def read_or_sample_input(definition: Definition, json_text: str | None, outside: Environment) -> tuple[Any, bool]:
    """The input, and whether it is made up. Raises UsageError: ``json_text`` is not JSON."""
    if json_text is not None:
        return read_input(json_text, []), False
    return sample_input(definition, outside), True
