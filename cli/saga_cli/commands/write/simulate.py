"""`saga simulate`: every failure point without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from saga_cli.context import load_settings
from saga_cli.inputs import read_input
from saga_cli.output import echo, print_list, write_page
from sagas.definition.model import Definition
from sagas.simulation import Environment, sample_input


def simulate(
    name: Annotated[str, typer.Argument(help="the saga's name")],
    input: Annotated[str | None, typer.Option(help="JSON, @file or -; default: a sample from the schema")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="also write the table as one HTML page")] = None,
) -> int:
    """Simulate every failure point: each step × each fault. Exit code 1 if one of them leaves a residue."""
    from saga_cli.render.simulation import print_failure_table
    from sagas.project import Project
    from sagas.simulation import Script, environment_of, failure_points
    from sagas.simulation import simulate as simulate_run

    project = Project(load_settings())
    definition = project.definition(name)
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


# The input of commands that only play: given, or made up from the saga's schema.
def read_or_sample_input(definition: Definition, json_text: str | None, outside: Environment) -> tuple[Any, bool]:
    """The input, and whether it is made up. Raises UsageError: ``json_text`` is not JSON."""
    if json_text is not None:
        return read_input(json_text, []), False
    return sample_input(definition, outside), True
