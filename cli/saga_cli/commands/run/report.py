"""`saga report`: the sagas of a day, or of another period."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saga_cli.context import with_locator
from saga_cli.output import echo, print_document, write_page
from sagas.errors import SagaError

if TYPE_CHECKING:
    from saga_workers.location.locator import Locator
    from saga_workers.views.period_report import PeriodReport
    from sagas.settings import Settings


def report(
    since: Annotated[str, typer.Option(help="sagas started since then: 12h, 7d, or 2026-03-01")] = "1d",
    saga: Annotated[str | None, typer.Option(help="only sagas of this name")] = None,
    limit: Annotated[
        int, typer.Option(help="maximum number of sagas that are parked, and of those with residue", min=1)
    ] = 100,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="also write an HTML page with the report")] = None,
) -> int:
    """Report on the sagas of a period: how many have started, how they have ended, the slowest steps, what is parked,
    and which effects contradict the end of their saga.

    Outcomes and times are from the ledger, the open sagas from Temporal. Without a ledger all numbers are Temporal's,
    and the report says what they leave out.
    """
    from saga_cli.shared_options import saga_filter

    async def read(locator: Locator, settings: Settings) -> PeriodReport:
        from saga_workers.views.period_report import read_report

        asked = saga_filter(settings, saga=saga, since=since, own_queue=True)
        return await read_report(locator, asked, _definitions(settings), datetime.now(UTC), limit=limit)

    period = with_locator(read)
    from saga_cli.render.period_report import print_report, report_page

    if html is not None:
        write_page(html, report_page(period))
    print_document(period.to_json(), human=lambda: print_report(period))
    if html is not None:
        echo(f"written: {html}")
    return 0


def _definitions(settings: Settings) -> list[str]:
    """The names in the project; none if its definitions cannot be read, which `saga validate` explains."""
    from sagas.project import Project

    try:
        return list(Project(settings).definitions)
    except SagaError:
        return []
