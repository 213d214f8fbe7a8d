"""`saga verify-undo`: run the undos on a copy of the databases and compare the rows."""

from __future__ import annotations

from typing import Annotated

import typer

from saga_cli.context import load_settings
from saga_cli.exit_codes import DIFFERENCES, FAILED
from saga_cli.inputs import read_input
from saga_cli.output import print_document
from saga_cli.shared_options import json_object
from saga_cli.stop_signals import run_and_clean_up


def verify_undo(
    name: Annotated[str, typer.Argument(help="the saga's name")],
    input: Annotated[
        str | None, typer.Option(help="JSON, @file or -; default: those of the project's tests, else a sample")
    ] = None,
    results: Annotated[
        str | None, typer.Option(metavar="JSON", help="results of steps that are not run, by step; @file too")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="the maximum number of orders that are run")] = 100,
) -> int:
    """Verify that the undos of a saga restore all rows, on a copy of its databases; the databases are only read.

    Runs the saga for each fault of `saga simulate` that leads backward, and undoes it as `saga undo` does. Steps in SQL
    and Python actions with a connection are performed, and so are their undos; other steps, such as http, are named as
    not verified. Exit code 8 if rows, columns or sequences are not as before, except those that `undo_leaves` of the
    definition names, or if a run does not undo what it undoes in `saga simulate`; 1 if the saga does not complete
    without a fault, or none of its undos could be verified.
    """
    from saga_cli.render.undo_report import print_undo_report
    from saga_workers.undo_check.tested_inputs import inputs_of_tests
    from saga_workers.undo_check.undo_check import GivenInput
    from saga_workers.undo_check.undo_check import verify_undo as verify
    from sagas.project import Project
    from sagas.simulation import environment_of, sample_input

    project = Project(load_settings())
    definition = project.definition(name)
    if input is not None:
        inputs = [GivenInput(read_input(input, []))]
    else:
        sample = GivenInput(sample_input(definition, environment_of(project)), "a generated one", is_sample=True)
        inputs = [*inputs_of_tests(project.settings.root, name), sample]
    given = {} if results is None else json_object(results, "--results")
    report = run_and_clean_up(verify(project, definition, inputs, given, limit))
    print_document(report.to_json(), human=lambda: print_undo_report(definition, report))
    if report.differs:
        return DIFFERENCES
    return FAILED if report.verifies_nothing else 0
