"""`saga doctor`: is everything there that a saga needs, and if not, what is the next step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from saga_cli.context import load_settings
from saga_cli.exit_codes import DONE, FAILED
from saga_cli.output import echo, print_list, wants_json
from saga_cli.progress import shown_progress

if TYPE_CHECKING:
    from collections.abc import Sequence


def doctor() -> int:
    """Check server, namespace, search attributes, workers, databases, every SQL statement, clocks, Spark and Kafka."""
    from saga_activities.silent_databases import asked_once
    from saga_cli.command_loop import run_command
    from saga_workers.doctor.checks import run_checks

    with shown_progress() as show, asked_once():
        findings = run_command(run_checks(load_settings(), on_progress=show))
    print_list([finding.to_json() for finding in findings], human=_print_results)
    return FAILED if any(finding.ok is False for finding in findings) else DONE


def _print_results(findings: Sequence[dict]) -> None:
    assert not wants_json()
    width = max(len(finding["check"]) for finding in findings)
    for finding in findings:
        mark = {True: "✔", False: "✖", None: "·"}[finding["ok"]]
        echo(f"{mark} {finding['check']:<{width}}  {finding['message']}")
        if finding["ok"] is not True and finding["help"]:
            echo(f"  {'':<{width}}  → {finding['help']}")
