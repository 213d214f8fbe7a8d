"""`saga reconcile`: do sagas, participants, topics and outputs agree?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saga_cli.context import load_settings, target_line, with_locator
from saga_cli.exit_codes import DIFFERENCES
from saga_cli.output import confirm, echo, on_ctrl_c, print_document, warn, write_page
from saga_cli.progress import shown_progress
from saga_cli.shared_options import Operator, Yes, operator_name
from sagas.errors import UsageError
from sagas.settings.private_files import make_private_folder, write_private_text
from sagas.text.shortening import counted

if TYPE_CHECKING:
    from saga_workers.location.locator import Locator
    from sagas.settings import Settings

LAST = "last"

_SHOWN = 5


def reconcile(
    saga_id: Annotated[str | None, typer.Argument(help="only this saga and those nested in it")] = None,
    since: Annotated[
        str | None, typer.Option(help="only what happened since then: 2h, 7d, 2026-03-01, or last")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="write an HTML page with counts, samples and commands")] = None,
    repair: Annotated[bool, typer.Option("--repair", help="repair what is safe to repair without an operator")] = False,
    as_: Operator = None,
    yes: Yes = False,
) -> int:
    """Compare the sagas with the guards, the business tables, the outboxes and their topics, and with staged and
    published output.

    Exit code 0: everything reconciles; 8: differences were found (and, with --repair, not all of them were repaired).
    `--since last` continues after the last reconciliation without differences.
    """
    _check_packages()
    if saga_id is not None and since is not None:
        raise UsageError("--since cannot be used with the id of one saga")
    settings = load_settings()
    from saga_spark.reconcile.extracts import ReconciliationScope

    scope = ReconciliationScope(_parse_since(settings, since), saga_id)
    if repair:
        warn(target_line(settings))
        confirm(
            "this undoes open effects of terminated runs, releases or drops events that ended sagas have left held,"
            " releases their locks, removes leftover stages, and writes missing rows of the ledger",
            yes=yes,
        )

    async def run(locator: Locator, settings: Settings) -> dict[str, Any]:
        from saga_workers.reconcile.reconciliation import reconcile as look
        from saga_workers.reconcile.repair import repair_findings

        with shown_progress() as show:
            report = await look(locator, settings, scope, on_progress=show)
            if repair and not report["consistent"]:
                show("repairing")
                repairs = await repair_findings(
                    locator, settings, report["findings"], who=operator_name(as_) or locator.temporal.identity
                )
                after = await look(locator, settings, scope, on_progress=show, require_saga=False)
                report = {**after, "repairs": repairs}
        return report

    changed = "finished repairs remain; run it again to continue" if repair else "nothing was changed"
    with on_ctrl_c(lambda: f"interrupted: {changed}"):
        result = with_locator(run)
    if report is not None:
        from saga_cli.render.reconciliation import reconciliation_html

        write_page(report, reconciliation_html(result))
    if saga_id is None and result["consistent"]:
        _save_last_run(settings, result["until"])
    print_document(result, human=lambda: _print_report(result, report))
    return 0 if result["consistent"] else DIFFERENCES


def _check_packages() -> None:
    import importlib.util

    for name in ("duckdb", "pyarrow"):
        if importlib.util.find_spec(name) is None:
            raise UsageError(
                f"a reconciliation needs the package {name}, which is not installed",
                help="pip install 'saga-orchestrator[reconcile]'",
            )


def _parse_since(settings: Settings, text: str | None) -> float | None:
    from saga_cli.shared_options import parse_time

    if text is None:
        return None
    if text != LAST:
        return parse_time(text, now=datetime.now(UTC)).timestamp()
    file = _last_run_file(settings)
    if not file.is_file():
        return None  # the first time everything is new
    return datetime.fromisoformat(file.read_text(encoding="utf-8").strip()).timestamp()


def _save_last_run(settings: Settings, until: str) -> None:
    file = _last_run_file(settings)
    make_private_folder(file.parent)
    write_private_text(file, until + "\n")


def _last_run_file(settings: Settings) -> Path:
    return settings.dev_folder / "reconciled-until"


def _print_report(result: Mapping[str, Any], report: Path | None) -> None:
    from saga_cli.render.reconciliation import decision_text, missing_keys_text
    from saga_spark.reconcile.findings import MISMATCH_KINDS, count_text

    read = result["read"]
    what = "; ".join(f"{count:,} {name}" for name, count in read.items())
    window = f" since {result['since']}" if result["since"] else ""
    for repair in result.get("repairs") or ():
        echo(f"↩ {repair['saga_id']}: {repair['done']}")
    if result["consistent"] and not any(read.values()):
        echo(f"· nothing to reconcile{window}: no saga, effect or event was found ({result['seconds']:g} s)")
    elif result["consistent"]:
        echo(f"✔ everything reconciles{window} ({what}; {result['seconds']:g} s)")
    else:
        echo(f"✖ {count_text(sum(result['counts'].values()))}{window} ({what}; {result['seconds']:g} s)")
    if unread := missing_keys_text(result):
        echo(f"✖ {unread}")
    for kind, count in result["counts"].items():
        echo("", f"{count} × {MISMATCH_KINDS[kind].title}: {MISMATCH_KINDS[kind].meaning}")
        _print_findings([finding for finding in result["findings"] if finding["class"] == kind], count)
    if result["decided"]:
        echo(
            "", f"{counted(len(result['decided']), 'publication')} closed by the decision of an operator, not compared:"
        )
        for row in result["decided"]:
            echo(f"  {row['saga_id']}  {row['step']}  {row['place']}  {decision_text(row)}")
    if report is not None:
        echo("", f"report: {report}")


def _print_findings(findings: Sequence[Mapping[str, Any]], count: int) -> None:
    for finding in findings[:_SHOWN]:
        row = ", ".join(f"{name}={value}" for name, value in (finding["row"] or {}).items())
        topic = f"topic {finding['details']['topic']}" if "topic" in finding["details"] else ""
        words = [finding["saga_id"] or "no saga", finding["step"] or "", finding["place"] or "", row, topic]
        echo("  " + "  ".join(word for word in words if word))
        echo(f"      {finding['command']}")
    if count > _SHOWN:
        echo(f"  … and {count - _SHOWN} more; see --report FILE.html or -o json")
