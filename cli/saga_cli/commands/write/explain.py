"""`saga explain`: the plan in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from saga_cli.context import load_settings
from saga_cli.output import echo, make_console, print_document
from sagas.errors import UsageError
from sagas.text.shell import saga_command

if TYPE_CHECKING:
    from sagas.definition.model import Definition
    from sagas.presentation.explain import Explanation


def explain(
    name: Annotated[str, typer.Argument(help="the saga's name")],
    fail: Annotated[str | None, typer.Option(metavar="STEP", help="what is undone when this step fails")] = None,
    input: Annotated[str | None, typer.Option(help="with --fail: the input, JSON, @file or -; else a sample")] = None,
    isolation: Annotated[
        bool, typer.Option("--isolation", help="what others can see before the saga is decided, and what covers it")
    ] = False,
) -> None:
    """Describe what a saga does, in which order, what undoes it, and the guarantee of each step.

    A step is batchable if sagas of a bulk workflow share its calls; at any other step a saga leaves the bulk workflow
    and goes on alone. With -o json these are the fields `batchable` and `why_not_batchable` of each step.

    With --isolation: from when to when others can see an effect that may still be undone, and what covers that. With
    -o json it is the field `isolation`, which the page 'Isolation' of the documentation describes.
    """
    from saga_cli.inputs import read_input
    from sagas.presentation.explain import explain as plan_of
    from sagas.project import Project
    from sagas.simulation import environment_of

    if input is not None and fail is None:
        raise UsageError("--input needs --fail STEP")
    if isolation and fail is not None:
        raise UsageError("--isolation and --fail exclude each other")
    project = Project(load_settings())
    definition = project.definition(name)
    if isolation:
        _explain_isolation(plan_of(definition))
        return
    given = None if input is None else read_input(input, [])
    plan = plan_of(definition, fail, given, environment=environment_of(project) if fail else None)
    print_document(plan.to_json(), human=lambda: _print_failure(plan) if plan.failure else _print_plan(plan))


def _explain_isolation(plan: Explanation) -> None:
    from sagas.presentation.isolation import isolation_document

    document = {**plan.to_json(), "isolation": isolation_document(plan.definition)}
    print_document(document, human=lambda: _print_isolation(plan.definition))


def _print_isolation(definition: Definition) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from sagas.definition.analysis.isolation import isolation_of
    from sagas.definition.model import has_effect
    from sagas.presentation.isolation import MEASURE_DESCRIPTIONS, describe_risk, describe_visibility

    out = make_console()
    open_risks = 0
    for number, (step, isolated) in enumerate(zip(definition.steps, isolation_of(definition), strict=True), 1):
        out.print(Text.assemble((f"{number:>2}  ", "dim"), (step.id, "bold"), f"  {step.do.uses}"))
        lines = [Text("has no effect" if not has_effect(step) else describe_visibility(definition, isolated))]
        for risk in isolated.risks:
            open_risks += not risk.covered_by
            mark, style = ("✔", "green") if risk.covered_by else ("✖", "bold red")
            lines.append(Text.assemble((f"{mark} {risk.anomaly}: ", style), describe_risk(isolated, risk)))
            lines += [Text(f"    {MEASURE_DESCRIPTIONS[measure]}", style="dim") for measure in risk.covered_by]
        for line in lines:
            out.print(Padding(line, (0, 0, 0, 4), expand=False))
        out.print()
    out.print("every risk is covered" if not open_risks else f"nothing covers {open_risks} of the risks")


def _print_plan(plan: Explanation) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from sagas.presentation.explain import (
        describe_commit_point,
        describe_locks,
        describe_notification,
        describe_redelivery,
        describe_schedule,
    )
    from sagas.presentation.step_phrases import step_phrases
    from sagas.presentation.styled_text import to_rich

    definition, out = plan.definition, make_console()
    description = " ".join(definition.description.split())
    out.print(to_rich([(definition.saga, "bold"), (f"  {description}".rstrip(), "")]))
    out.print()
    for number, step in enumerate(definition.steps, 1):
        name = "" if step.name == step.id else f"  {step.name}"
        out.print(to_rich([(f"{number:>2}  ", "dim"), (step.id, "bold"), (name, "")]))
        for phrases in step_phrases(plan, step):
            out.print(Padding(to_rich(list(phrases)), (0, 0, 0, 4), expand=False))
        out.print()
    out.print(describe_commit_point(definition))
    for sentence in (describe_locks(definition), describe_schedule(definition), describe_redelivery(definition)):
        if sentence is not None:
            out.print(to_rich([(sentence, "")]))
    for notification in definition.notify:
        out.print(to_rich([(f"✉ {describe_notification(notification)}", "")]))
    out.print(
        Text(f"{saga_command('explain', definition.saga, fail='STEP')}    what is undone, in which order", style="dim")
    )


def _print_failure(plan: Explanation) -> None:
    from sagas.presentation.explain import describe_undo_after_failure

    run, definition = plan.failure, plan.definition
    assert run is not None
    echo(f"if {plan.failed_step} of {definition.saga} is rejected, the saga ends {run.state}")
    done = [row["id"] for row in run.steps if row["outcome"] == "done"]
    if done:
        echo(f"done before: {', '.join(done)}")
    for number, id in enumerate(run.undone, 1):
        step = definition.step(id.split("/")[0].partition("#")[0])
        echo(f"  {number}. ↩ {id}  {describe_undo_after_failure(step)}")
    if not run.undone:
        echo("nothing is undone" if run.state != "COMPENSATED" else "nothing was done, so nothing is undone")
    for row in run.parked:
        echo(f"{row['step']} waits for an operator ({row['why']}): {', '.join(row['decisions'])}")
