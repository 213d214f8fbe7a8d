"""The moments at which clocks change, and what `saga backfill` says about them."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from saga_cli.commands.run.backfill import parse_bound, skipped_time, warn_of_clock_changes
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
    warn_of_clock_changes(BERLIN, first, last, [datetime(2026, 10, 24, hour, tzinfo=UTC)], are_printed=False)
    message = capsys.readouterr().err
    assert ("the clocks of Europe/Berlin change in this range, at 2026-10-25T01:00:00Z" in message) == is_said


@pytest.mark.parametrize("are_printed", [False, True])
def test_who_sees_the_times_is_not_told_how_to_see_them(are_printed: bool, capsys: pytest.CaptureFixture[str]) -> None:
    first, last = datetime(2026, 10, 24, tzinfo=UTC), datetime(2026, 10, 26, tzinfo=UTC)
    warn_of_clock_changes(BERLIN, first, last, [], are_printed=are_printed)
    message = capsys.readouterr().err
    assert "the clocks of Europe/Berlin change" in message
    assert ("--dry-run" in message) == (not are_printed)


def test_a_time_that_clocks_skip_is_named() -> None:
    """A time of the hour after the skipped one reads as if it were later, and counts as earlier."""
    first, last = "2026-03-29T02:30", "2026-03-29T03:00"
    assert parse_bound(last, BERLIN, "--to") < parse_bound(first, BERLIN, "--from")
    skipped = "--from 2026-03-29T02:30 does not exist in Europe/Berlin: the clocks skip it, and it is 03:30"
    assert skipped_time(first, BERLIN, "--from") == skipped
    for exists in (last, "2026-03-29", "2026-10-25T02:30", "2026-03-29T02:30Z"):
        assert skipped_time(exists, BERLIN, "--to") is None
