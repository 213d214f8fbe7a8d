"""Operations in which a parameter takes part: the rows are those of the whole value, or nothing is written.

An operation is a condition around an expression around the parameter, in a statement; all of them are possible, and
some are drawn. What is right is computed here, from the rows and the value.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, time
from decimal import Decimal
from typing import Any, NamedTuple

import sqlalchemy as sa

from tests.helpers.sampling import scaled
from tests.integration.guard.conftest import GuardDatabase
from tests.integration.guard.test_exact_sql_forms import execute

SAMPLES = scaled(20, 1000)

COLUMNS = {
    "postgres": "n bigint, m numeric(38, 18), until timestamp, at timestamptz, d date, t time, tags int[]",
    "mariadb": "n bigint, m decimal(38, 18), until datetime, at timestamp null, d date, t time, tags text",
    "sqlite": "n bigint, m integer, until text, at text, d text, t text, tags text",
}
BIG = 9007199254740993
NUMBERS = {1: BIG, 2: 5, 3: -1}
TIMES = {1: datetime(2026, 5, 1, 9, tzinfo=UTC), 2: datetime(2026, 5, 1, 11, tzinfo=UTC),
         3: datetime(2026, 5, 2, tzinfo=UTC)}  # fmt: skip

STATEMENTS = [
    "delete from operand_forms where {}",
    "update operand_forms set id = id + 10 where {}",
    "update operand_forms set id = id + 10 where id in (select s.id from (select id from operand_forms where {}) s)",
    "update operand_forms set id = case when {} then id + 10 else id end",
    "delete from operand_forms where not ({}) is not true",
]
EXPRESSIONS = ["{}", "({})", "(select {})", "coalesce({}, {})", "case when 1 = 1 then {} end", "nullif({}, null)"]


class Condition(NamedTuple):
    """``x`` in ``text`` is the expression around the parameter; ``holds`` takes the column of a row and the value."""

    text: str
    column: str
    holds: Callable[[Any, Any], bool]


OF_NUMBERS = [
    Condition("n >= x", "n", lambda n, v: n >= v),
    Condition("x > n", "n", lambda n, v: v > n),
    Condition("n = x", "n", lambda n, v: n == v),
    Condition("n in (x, -7)", "n", lambda n, v: n == v),
    Condition("n between x and x", "n", lambda n, v: n == v),
    Condition("m between x and x", "m", lambda n, v: n == v),
    Condition("m - x >= 0", "m", lambda n, v: n - v >= 0),
    Condition("m + x > m", "m", lambda n, v: v > 0),
    Condition("n - x = 0", "n", lambda n, v: n == v),
    Condition("n - x in (0)", "n", lambda n, v: n == v),
    Condition("n + 0 = x", "n", lambda n, v: n == v),
    Condition("coalesce(n, 0) <> x", "n", lambda n, v: n != v),
    Condition("abs(n) < x", "n", lambda n, v: abs(n) < v),
    Condition("(select n) <= x", "n", lambda n, v: n <= v),
    Condition("case n when x then 1 else 0 end = 1", "n", lambda n, v: n == v),
    Condition("@greatest(n, x) = n", "n", lambda n, v: n >= v),
    Condition("@greatest(n, x) - n = 0", "n", lambda n, v: n >= v),
]
NUMBER_VALUES = [
    *(str(BIG), str(BIG - 1), "5", "05", "5.0", "-1", "0.000000000000000001", f"{BIG}.000000000000000001"),
    *("5 apples", "", BIG, Decimal("0.5"), Decimal("5.0")),
]  # fmt: skip
OF_TIMES = [
    Condition("until <= x", "until", lambda at, v: at <= v),
    Condition("x < until", "until", lambda at, v: v < at),
    Condition("until between x and x", "until", lambda at, v: at == v),
    Condition("until in (x)", "until", lambda at, v: at == v),
    Condition("@greatest(until, x) = until", "until", lambda at, v: at >= v),
    Condition("at <= x", "at", lambda at, v: at <= v),
    Condition("d = x", "d", lambda at, v: datetime.combine(at, time(), UTC) == v),
    Condition("d < x", "d", lambda at, v: datetime.combine(at, time(), UTC) < v),
    Condition("t <= x", "t", lambda at, v: at <= v.timetz()),
]
OF_POSTGRESQL = [
    Condition("until = any(array[x])", "until", lambda at, v: at == v),
    Condition("until <= cast(x as timestamp)", "until", lambda at, v: at <= v),
    Condition("date_trunc('day', until) < date_trunc('day', x::timestamp)", "until",
              lambda at, v: at.date() < v.date()),
    Condition("tsrange(x, null) @> until", "until", lambda at, v: v <= at),
    Condition("age(until, x) >= interval '0'", "until", lambda at, v: at >= v),
]  # fmt: skip
TIME_VALUES = [
    *("2026-05-01T12:00:00+02:00", "2026-05-01T11:00:00", "2026-05-01T09:00:00.0+00:00", "2026-05-01 09:00:00"),
    *("2026-05-01T23:30:00-05:00", "2026-05-02", "2026-05-02 00:00:00", "2026-05-01T10:59:59.9999999"),
    *("09:00:00", "12:00:00+05:00", "08:59:59.9999999"),
]  # fmt: skip


async def fresh(database: GuardDatabase) -> None:
    async with database.engine.connect() as connection:
        if not await connection.run_sync(lambda sync: sa.inspect(sync).has_table("operand_forms")):
            columns = COLUMNS[database.kind]
            await connection.exec_driver_sql(f"create table operand_forms (id int primary key, {columns})")
        await connection.exec_driver_sql("delete from operand_forms")
        tags = "'{1,2,3}'" if database.kind == "postgres" else "null"
        for id, number in NUMBERS.items():
            at = TIMES[id].strftime("%Y-%m-%d %H:%M:%S")
            await connection.exec_driver_sql(
                f"insert into operand_forms values ({id}, {number}, {number}, '{at}', '{at}', '{at[:10]}',"
                f" '{at[11:]}', {tags})"
            )
        await connection.commit()


async def hits(database: GuardDatabase) -> list[int]:
    """The ids of the rows that the statement has changed or deleted."""
    remaining = {row[0] for row in await database.rows("select id from operand_forms")}
    return [id for id in NUMBERS if id not in remaining]


def _number(value: Any) -> Decimal | None:
    try:
        return Decimal(value)
    except ArithmeticError:
        return None


def _time(text: str) -> datetime | None:
    """The point in time in UTC; for a time of day that of some day."""
    text = text if "-" in text[:8] else f"2026-05-01T{text}"
    exact = datetime.fromisoformat(text)
    return exact.replace(tzinfo=UTC) if exact.tzinfo is None else exact.astimezone(UTC)


def _expected(condition: Condition, value: Any) -> list[int] | None:
    """The rows that the condition holds for; None if there is no right answer, so that the step must fail."""
    of_number = condition.column in ("n", "m")
    exact = _number(value) if of_number else _time(value)
    if exact is None:
        return None
    held: dict[int, Any] = dict(NUMBERS if of_number else TIMES)
    if condition.column == "d":
        held = {id: at.date() for id, at in TIMES.items()}
    if condition.column == "t":
        held = {id: at.timetz() for id, at in TIMES.items()}
    if not of_number and (condition.column == "t") != ("-" not in value[:8]):
        return None
    return [id for id, own in held.items() if condition.holds(own, exact)]


def _draws(kind: str, drawn: random.Random) -> Sequence[tuple[Condition, str, str, Any]]:
    # SQLite orders other text after all numbers.
    number_values = NUMBER_VALUES if kind != "sqlite" else [value for value in NUMBER_VALUES if _number(value)]
    of_times = [] if kind == "sqlite" else [*OF_TIMES, *(OF_POSTGRESQL if kind == "postgres" else ())]
    # SQLite has no exact fractions.
    of_numbers = [each for each in OF_NUMBERS if kind != "sqlite" or each.text != "m + x > m"]
    plain = [(condition, "{}", STATEMENTS[0], value) for condition in of_numbers for value in number_values]
    plain += [(condition, "{}", STATEMENTS[0], value) for condition in of_times for value in TIME_VALUES]
    plain = drawn.sample(plain, min(SAMPLES, len(plain)))
    others = [
        (condition, drawn.choice(EXPRESSIONS), drawn.choice(STATEMENTS), drawn.choice(values))
        for _ in range(SAMPLES // 2)
        for condition, values in [
            drawn.choice([*((each, number_values) for each in of_numbers), *((each, TIME_VALUES) for each in of_times)])
        ]
    ]
    return [
        (condition, "{}" if "timestamp" in condition.text else expression, statement, value)
        for condition, expression, statement, value in [*plain, *others]
    ]


async def test_every_operation_takes_the_whole_value(guard_database: GuardDatabase) -> None:
    database, seed = guard_database, scaled(7, random.randrange(1 << 32))
    print(f"seed {seed}")
    done, wrong = 0, list[str]()
    await fresh(database)
    for condition, expression, statement, value in _draws(database.kind, random.Random(seed)):
        text = condition.text.replace("@greatest", "max" if database.kind == "sqlite" else "greatest")
        run = statement.format(
            text.replace("x", expression.replace("{}", ":v"))
            if "max" not in text
            else text.replace("x)", expression.replace("{}", ":v") + ")")
        )
        outcome = await execute(database, run, v=value)
        rows, expected = await hits(database), _expected(condition, value)
        case = f"{run} with {value!r}: {outcome.kind} {rows} instead of {expected}, {outcome.failure}"
        if outcome.kind == "done":
            done += 1
            if rows != expected and not (expected is None and isinstance(value, str) and rows == []):
                wrong.append(case)
        elif rows:
            wrong.append(case)
        if rows:
            await fresh(database)
    assert not wrong, "\n".join([f"{len(wrong)} of {done}", *wrong])
    assert done > SAMPLES // 2
