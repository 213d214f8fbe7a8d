"""`saga simulate`: every failure point without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from saga_cli.context import load_settings
from saga_cli.output import print_list, say
from sagas.errors import UsageError


def simulate(
    name: Annotated[str, typer.Argument(help="the saga's name")],
    input: Annotated[str | None, typer.Option(help="JSON, @file or -; default: made up from the schema")] = None,
    html: Annotated[str | None, typer.Option(metavar="FILE", help="also write the table as one HTML page")] = None,
) -> int:
    """Play every failure point: each step × each fault. Exit code 1 when one of them leaves an effect behind."""
    from saga_cli.plan_input import given_or_made_up
    from saga_cli.simulation_text import print_cells
    from sagas.project import Project
    from sagas.simulation import Script, every_failure, outside_of

    project = Project(load_settings())
    definition = project.definition(name)
    outside = outside_of(project)
    given, made_up = given_or_made_up(definition, input, outside)
    cells = every_failure(definition, given, Script(invented=made_up), outside)
    if html is not None:
        from saga_cli.simulation_html import page

        try:
            Path(html).write_text(page(definition, given, cells), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{html} cannot be written: {error.strerror}.") from error
    print_list(
        [cell.to_json() for cell in cells], human=lambda _: print_cells(definition, given, cells, made_up=made_up)
    )
    if html is not None:
        say(f"written: {html}")
    return int(any(cell.residue for cell in cells))
