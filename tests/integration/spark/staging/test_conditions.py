"""Conditions of the definition (`where`, `accepted_values`) on columns of a real Spark: exact, or refused."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from saga_spark.column_values import filter_condition
from saga_spark.session_conf import changed_conf
from sagas.builtins.spark import SESSION_ZONE
from sagas.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONG_DECIMAL = "12345678901234567890.123456789012345678"
ZONES = ["UTC", "Asia/Kolkata", "America/New_York", "Pacific/Chatham"]


CASES: list[tuple[str, Any, bool]] = [
    (f"cast('{LONG_DECIMAL}' as decimal(38,18))", Decimal(LONG_DECIMAL), True),
    (f"cast('{LONG_DECIMAL}' as decimal(38,18))", [Decimal("12345678901234567890.1234567890"), 10**37], False),
    (f"cast('{LONG_DECIMAL}' as decimal(38,18))", [None, 10**70, LONG_DECIMAL], True),
    ("cast(1.5 as decimal(10,1))", Decimal("1.50"), True),
    ("cast(1.5 as decimal(10,1))", Decimal("1.55"), False),
    ("cast(0 as decimal(38,38))", 0, True),
    ("cast(0.5 as decimal(38,38))", [1, Decimal("0.5")], True),
    ("5L", Decimal("5.0"), True),
    ("5L", [Decimal("5.5"), 2**70], False),
    ("9223372036854775807L", 2**63 - 1, True),
    ("cast(-128 as tinyint)", [-128, 128], True),
    ("cast(-128 as tinyint)", 128, False),
    ("0.1D", Decimal("0.1"), True),
    ("cast(0.1 as float)", Decimal("0.1"), True),
    ("cast(16777216 as float)", 16777217, False),
    ("cast(16777216 as float)", [16777217, 16777216], True),
    ("9007199254740992D", [2**53 + 1, Decimal("0.1")], False),
    ("double('Infinity')", Decimal("1e400"), False),
    ("true", [True], True),
    ("false", "true", False),
    ("'007'", "007", True),
    ("'007'", ["7", None], False),
    ("cast(null as string)", ["7", None], True),
    ("cast(null as string)", None, True),
    ("cast(null as string)", "7", False),
    ("5", [], False),
    ("date'2026-01-02'", "2026-01-02", True),
    ("date'1582-10-10'", ["1582-10-10"], True),
    # Both instants of the repeated hour of New York, and its first instant in other spellings.
    ("timestamp'2026-11-01 05:30:00Z'", "2026-11-01T01:30:00-04:00", True),
    ("timestamp'2026-11-01 05:30:00Z'", "2026-11-01T01:30:00-05:00", False),
    ("timestamp'2026-11-01 05:30:00Z'", "2026-11-01 05:30", True),
    ("timestamp'2026-11-01 05:30:00Z'", ["2026-11-01t05:30:00z"], True),
    ("timestamp'2026-11-01 05:30:00.000001Z'", "2026-11-01T05:30:00.0000010Z", True),
    ("timestamp'2026-11-01 05:30:00.000001Z'", "2026-11-01T05:30:00.0000011Z", False),
    ("timestamp'0001-01-01 00:00:00Z'", "0001-01-01", True),
    ("timestamp_ntz'2026-11-01 01:30:00'", "2026-11-01T01:30:00", True),
    ("X'41'", "A", True),
]


@pytest.mark.sampled(keep=2)
@pytest.mark.parametrize("zone", ZONES)
def test_a_condition_selects_exactly_the_equal_rows_in_every_zone(zone: str, spark: SparkSession) -> None:
    """One query for all of them: which value is in which row does not matter to a condition."""
    columns = [f"{expression} as `a.{number}`" for number, (expression, _, _) in enumerate(CASES)]
    with changed_conf(spark, SESSION_ZONE, zone):
        frame = spark.sql(f"select {', '.join(columns)}")
        conditions = [
            filter_condition({f"a.{number}": value}, frame.schema, "`where`")
            for number, (_, value, _) in enumerate(CASES)
        ]
        [row] = frame.select(*conditions).collect()
    wrong = [case for case, chosen in zip(CASES, row, strict=True) if bool(chosen) != case[2]]
    assert not wrong


@pytest.mark.parametrize(
    ("expression", "value", "message"),
    [
        ("'x'", 7, "`where`: the column c is string and cannot be 7; quote it"),
        ("'x'", Decimal("1.10"), "the column c is string and cannot be 1.10; quote it"),
        ("'x'", {"a": 1}, "the column c is string and cannot be"),
        ("5", "five", "the column c is int and cannot be five; correct the value"),
        ("5", True, "the column c is int and cannot be True"),
        ("1.5", "NaN", "cannot be NaN"),
        ("true", 1, "the column c is boolean and cannot be 1"),
        ("date'2026-01-02'", "2026-01-32", "the column c is date and cannot be 2026-01-32"),
        ("date'2026-01-02'", 20260102, "the column c is date and cannot be 20260102"),
        ("timestamp'2026-01-02'", "yesterday", "the column c is timestamp and cannot be yesterday"),
        ("timestamp_ntz'2026-01-02'", "2026-01-02T00:00Z", "the column c is timestamp_ntz and cannot be"),
        ("array(1)", 1, "the column c is array<int> and cannot be 1"),
    ],
)
def test_a_value_that_a_column_cannot_have_is_refused(
    expression: str, value: Any, message: str, spark: SparkSession
) -> None:
    schema = spark.sql(f"select {expression} as c").schema
    with pytest.raises(UsageError, match=message):
        filter_condition({"c": [value]}, schema, "`where`")
    with pytest.raises(UsageError, match="`where` names the column d, which does not exist"):
        filter_condition({"d": value}, schema, "`where`")
