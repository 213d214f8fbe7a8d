"""The moments at which clocks change, and what `saga backfill` says about them."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from saga_cli.commands.run.backfill import warn_of_clock_changes
from sagas.schedules.clock_changes import clock_changes

BERLIN = ZoneInfo("Europe/Berlin")
SPRING, AUTUMN = datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2026, 10, 25, 1, tzinfo=UTC)


def test_changes_of_a_year() -> None:
    first, last = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)
    assert list(clock_changes(BERLIN, first, last)) == [SPRING, AUTUMN]
    assert list(clock_changes(BERLIN, SPRING, AUTUMN.replace(hour=0))) == []
    assert list(clock_changes(ZoneInfo("UTC"), first, last)) == []


@pytest.mark.parametrize(("hour", "is_said"), [(23, True), (1, True), (9, False)])
def test_a_schedule_at_other_hours_is_not_affected(
    hour: int, is_said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    first, last = datetime(2026, 10, 24, tzinfo=UTC), datetime(2026, 10, 26, tzinfo=UTC)
    warn_of_clock_changes(BERLIN, first, last, [datetime(2026, 10, 24, hour, tzinfo=UTC)])
    message = capsys.readouterr().err
    assert ("the clocks of Europe/Berlin change in this range, at 2026-10-25T01:00:00Z" in message) == is_said
