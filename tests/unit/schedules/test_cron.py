"""Cron expressions and time zones."""

from __future__ import annotations

import re

import pytest

from sagas.schedules.cron import MAX_CRON_LENGTH, CronError, parse_cron
from sagas.schedules.zones import read_zone


def test_the_fields_of_a_cron_expression_are_read() -> None:
    cron = parse_cron("*/20 9-17/4 1,15 jan-mar mon-fri")
    assert (cron.seconds, cron.minutes, cron.hours) == ((0,), (0, 20, 40), (9, 13, 17))
    assert (cron.days, cron.months, cron.weekdays, cron.years) == ((1, 15), (1, 2, 3), (1, 2, 3, 4, 5), None)
    assert parse_cron("5 0 0 1 1 * 2030-2032").years == (2030, 2031, 2032)
    assert parse_cron("0 0 * * 7") == parse_cron("0 0 * * sun") == parse_cron("@weekly")
    assert parse_cron("10/20 * * * *").minutes == (10, 30, 50)
    assert parse_cron("0 0 * * 5-7").weekdays == (0, 5, 6)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "0 fields"),
        ("* * * *", "4 fields"),
        ("* * * * * * * *", "8 fields"),
        ("60 * * * *", "`60` is not a valid minute"),
        ("* * 0 * *", "`0` is not a valid day of the month"),
        ("* * * 13 *", "`13` is not a valid month"),
        ("* * * * 8", "`8` is not a valid day of the week"),
        ("5-3 * * * *", "ends before it begins"),
        ("*/0 * * * *", "a step of zero"),
        ("* * 30 2 *", "never matches"),
        ("* * 31 4,6,9,11 *", "never matches"),
        ("* * 29 2 * 2027", "never matches"),
        ("CRON_TZ=UTC * * * * *", "names a time zone"),
        ("@every 1s", "is not a cron expression"),
        ("@reboot", "is not known"),
        ("? * * * *", "is not a valid minute"),
        ("0 0 L * *", "is not a valid day of the month"),
        ("1,,2 * * * *", "is not a valid minute"),
        ("-1 * * * *", "is not a valid minute"),
        ("٣ * * * *", "is not a valid minute"),
        ("0" * (MAX_CRON_LENGTH + 1), "the maximum is"),
        ("\x1b[31m * * * *", "is not a valid minute"),
        ("99999999999999999999 * * * *", "is not a valid minute"),
    ],
)
def test_what_is_no_cron_expression_is_refused(text: str, problem: str) -> None:
    with pytest.raises(CronError, match=problem.replace("[", r"\[")) as error:
        parse_cron(text)
    assert "\x1b" not in str(error.value)
    assert error.value.help


def test_an_expression_may_restrict_both_fields_of_days() -> None:
    assert parse_cron("0 9 1-7 * mon").restricts_both_days
    assert not parse_cron("0 9 * * mon").restricts_both_days
    assert not parse_cron("0 9 1 * *").restricts_both_days


def test_an_unknown_time_zone_is_refused() -> None:
    for name in ("Europe/Berlim", "", "../etc/passwd", "a\0b", "x" * 5000):
        with pytest.raises(ValueError, match="^" + re.escape(name) + "$"):
            read_zone(name)
