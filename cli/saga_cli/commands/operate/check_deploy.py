"""`saga check-deploy`: can this build go on with the sagas that there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from saga_cli.context import with_locator
from saga_cli.exit_codes import DIFFERENCES, DONE
from saga_cli.output import echo, print_document
from saga_cli.progress import shown_progress
from sagas.text.printable import printable_line
from sagas.text.shortening import counted, join_names

if TYPE_CHECKING:
    from saga_workers.deploy.deploy_check import DeployCheck
    from saga_workers.deploy.deploy_problems import DeployProblem
    from saga_workers.location.locator import Locator
    from sagas.settings import Settings


def check_deploy(
    limit: Annotated[int, typer.Option(help="maximum number of sagas and runs; open ones come first", min=1)] = 10_000,
) -> int:
    """Check, before a new version is deployed, that it can go on with the sagas that are open or can be undone.

    Run it with the new code, against the server where the old code runs. It replays the history of each saga on this
    build, and compares the actions, compensations, confirms and probes that the saga may still call with the registered
    actions. The databases prepare the SQL of these calls. Sagas that `saga resume` continues count as open. It starts
    no saga, calls no participant and executes none of the statements. Exit code 8 if something would break, or if there
    are more sagas than --limit, of which the others are not checked.
    """

    async def check(locator: Locator, settings: Settings) -> int:
        from saga_workers.deploy.deploy_check import check_deploy as check_sagas
        from sagas.project import Project

        with shown_progress() as show:
            checked = await check_sagas(locator, Project(settings), limit=limit, on_progress=show)
        print_document(checked.to_json(), human=lambda: _print(checked, limit))
        return DONE if checked.is_good else DIFFERENCES

    return with_locator(check)


def _print(checked: DeployCheck, limit: int) -> None:
    for problem in checked.problems:
        echo(f"✖ {_line(problem)}")
    for problem in checked.unchecked:
        echo(f"· {_line(problem)}")
    for unread in checked.unread:
        echo(f"✖ not read: {printable_line(unread)}")
    if not checked.is_complete:
        echo(f"✖ the check has ended at its limit of {limit}; further sagas were not checked")
        echo("  → check all with a larger --limit")
    echo(f"✔ this build can go on with all: {_counts(checked)}" if checked.is_good else f"· {_counts(checked)}")
    if checked.unseen:
        echo(f"· the SQL of Python actions is not checked: {join_names(checked.unseen, 5)}")
    if not checked.problems:
        return
    kinds = {problem.kind for problem in checked.problems}
    if "call" in kinds:
        echo("  → keep the earlier action or setting beside the new one until no saga needs it any more")
    if kinds & {"call", "replay"}:
        echo("  → or leave the old workers running until these sagas have ended; if they have a build id, the new ones")
        echo("    get another: saga worker --deployment NAME --build-id ID    else another task_queue under [temporal]")
    if "statement" in kinds:
        echo("  → keep the earlier tables and columns beside the new ones until no saga needs them any more; old")
        echo("    workers do not help, because they have the same database")


def _counts(checked: DeployCheck) -> str:
    bulk = f" (and {counted(checked.in_bulk, 'saga')} in bulk workflows)" if checked.in_bulk else ""
    resumable = f", {checked.resumable} to resume" if checked.resumable else ""
    runs = counted(checked.running, "open run", "open runs")
    return f"{runs}{bulk}{resumable}, {checked.undoable} that can be undone"


def _line(problem: DeployProblem) -> str:
    what = f"the history does not replay: {problem.what}" if problem.kind == "replay" else problem.what
    more = f" and {problem.count - 1} more" if problem.count > 1 else ""
    return f"{printable_line(problem.saga)}: {printable_line(what)}; {printable_line(problem.ids[0])}{more}"
