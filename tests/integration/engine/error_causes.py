"""Statements that fail for a reason which an operator can remove, for each database."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Cause:
    """``attempts``: how many there are before the saga ends or parks; ``heals``: the third one succeeds.

    ``repair`` removes the cause. ``deferred``: the database finds it when the transaction ends.
    """

    name: str
    statement: str
    attempts: int = 1
    heals: bool = False
    tables: tuple[str, ...] = ()
    repair: tuple[str, ...] = ()
    deferred: bool = False


ANYWHERE = (
    Cause(
        "missing_table",
        "insert into missing_table values (1)",
        repair=("create table missing_table (id int)", "grant insert on {db}missing_table to limited{host}"),
    ),
    Cause(
        "missing_column",
        "insert into missing_column (n, m) values (1, 2)",
        tables=("create table missing_column (n int)",),
        repair=("alter table missing_column add column m int",),
    ),
    Cause(
        "value",
        "insert into narrow values (12345.67)",
        tables=("create table narrow (n numeric(5,2))",),
        repair=("{alter_narrow}",),
    ),
    Cause(
        "not_null",
        "insert into filled (n) values (null)",
        tables=("create table filled (n int not null)",),
        repair=("{drop_not_null}",),
    ),
    Cause(
        "check",
        "insert into positive values (-1)",
        tables=("create table positive (n int, constraint is_positive check (n > 0))",),
        repair=("alter table positive drop constraint is_positive",),
    ),
    Cause(
        "right",
        "insert into forbidden values (1)",
        tables=("create table forbidden (n int)",),
        repair=("grant insert on {db}forbidden to limited{host}",),
    ),
    Cause(
        "unique",
        "insert into single values (1)",
        attempts=3,
        tables=("create table single (n int, constraint only_one unique (n))", "insert into single values (1)"),
        repair=("{drop_unique}",),
    ),
    Cause(
        "foreign_key",
        "insert into child values (1)",
        attempts=3,
        tables=(
            "create table parent (n int primary key)",
            "create table child (n int, foreign key (n) references parent (n))",
        ),
        repair=("insert into parent values (1)",),
    ),
)
MARIADB_ONLY = (
    Cause(
        "enum",
        "insert into kinds values ('c')",
        tables=("create table kinds (kind enum('a', 'b'))",),
        repair=("alter table kinds modify kind enum('a', 'b', 'c')",),
    ),
    Cause(
        "default",
        "insert into without_default (n) values (1)",
        tables=("create table without_default (n int, due int not null)",),
        repair=("alter table without_default modify due int not null default 0",),
    ),
    Cause(
        "partition",
        "select n from parted partition (p0)",
        tables=("create table parted (n int)",),
        repair=("alter table parted partition by range (n) (partition p0 values less than (5))",),
    ),
    Cause(
        "versions",
        "select n from versioned for system_time all",
        tables=("create table versioned (n int)",),
        repair=("alter table versioned add system versioning",),
    ),
    Cause(
        "exhausted",
        "select nextval(ticket)",
        tables=("create sequence ticket maxvalue 2", "do nextval(ticket), nextval(ticket)"),
        repair=("alter sequence ticket maxvalue 1000",),
    ),
    Cause(
        "signal_value",
        "insert into signalled_value values (1)",
        tables=(
            "create table signalled_value (n int)",
            "create trigger refuse_value before insert on signalled_value for each row signal sqlstate '22003'",
        ),
        repair=("drop trigger refuse_value",),
    ),
    Cause(
        "signal_conflict",
        "insert into signalled_row values (1)",
        attempts=3,
        tables=(
            "create table signalled_row (n int)",
            "create trigger refuse_row before insert on signalled_row for each row signal sqlstate '23000'",
        ),
        repair=("drop trigger refuse_row",),
    ),
)
"""Errors whose numbers have the SQLSTATE HY000 or 01000, and refusals of triggers."""

SERVERS = {
    "postgresql": (
        *ANYWHERE,
        Cause(
            "unsupported",
            "select unsupported()",
            tables=(
                "create function unsupported() returns void language plpgsql as $$ begin"
                " perform n from positive group by n for update; end $$",
            ),
            repair=("create or replace function unsupported() returns void language plpgsql as $$ begin end $$",),
        ),
        *(
            Cause(
                f"deferred_{table}",
                f"insert into {table} values (1)",
                attempts=attempts,
                tables=tables,
                repair=(repair,),
                deferred=True,
            )
            for table, attempts, repair, tables in (
                (
                    "late_child",
                    3,
                    "alter table late_child drop constraint of_late_parent",
                    (
                        "create table late_parent (n int primary key)",
                        "create table late_child (n int constraint of_late_parent references late_parent"
                        " deferrable initially deferred)",
                    ),
                ),
                (
                    "judged",
                    1,
                    "drop trigger judging on judged",
                    (
                        "create table judged (n int)",
                        "create function judge() returns trigger language plpgsql as $$ begin"
                        " raise exception 'judged' using errcode = '23514'; end $$",
                        "create constraint trigger judging after insert on judged deferrable initially deferred"
                        " for each row execute function judge()",
                    ),
                ),
            )
        ),
        Cause(
            "exclusion",
            "insert into slot values (int4range(1, 5))",
            attempts=3,
            tables=(
                "create table slot (at int4range, constraint apart exclude using gist (at with &&))",
                "insert into slot values (int4range(1, 5))",
            ),
            repair=("alter table slot drop constraint apart",),
        ),
        *(
            Cause(f"passing_{code}", f"select passing(':counter', '{code}')", attempts=3, heals=True)
            for code in ("40001", "40P01", "55P03", "lost")
        ),
    ),
    "mariadb": (
        *ANYWHERE,
        *MARIADB_ONLY,
        *(
            Cause(f"passing_{code}", f"select passing_{code}(lastval(:counter))", attempts=3, heals=True)
            for code in ("1213", "1205", "1226", "1644")
        ),
    ),
}
_OF_SQLITE = {
    "missing_table": ("create table missing_table (id int)",),
    "value": ("drop table narrow", "create table narrow (n any) strict"),
    "not_null": ("drop table filled", "create table filled (n int)"),
    "check": ("drop table positive", "create table positive (n int)"),
    "unique": ("drop table single", "create table single (n int)"),
}
"""What removes a cause on SQLite, which changes no column and has no accounts."""

SQLITE = tuple(
    replace(
        cause,
        repair=_OF_SQLITE.get(cause.name, cause.repair),
        **(
            {"tables": ("create table narrow (n integer) strict",), "statement": "insert into narrow values ('x')"}
            if cause.name == "value"
            else {}
        ),
    )
    for cause in ANYWHERE
    if cause.name != "right"
)
UNPREPARABLE = {
    "postgresql": (
        Cause(
            "prepare",
            "select unpreparable()",
            tables=(
                "create function unpreparable() returns void language plpgsql as $$ begin"
                " create temp table if not exists passing_table (n int) on commit drop; end $$",
            ),
            repair=("create or replace function unpreparable() returns void language plpgsql as $$ begin end $$",),
            deferred=True,
        ),
    ),
    "mariadb": (),
}

REFUSING_TRIGGERS = {
    "postgresql": (
        "create function refuse_{code}() returns trigger language plpgsql as $$ begin"
        " if nextval('{counter}') < {enough} then"
        " raise exception 'refused' using errcode = '{code}'; end if; return new; end $$",
        "create trigger refuse_{code} before insert on saga_guard for each row when (new.op = 'confirm'"
        " and new.saga_id like '%%-refused-{lower}') execute function refuse_{code}()",
    ),
    "mariadb": (
        "create trigger refuse_{code} before insert on saga_guard for each row"
        " if new.op = 'confirm' and new.saga_id like '%%-refused-{lower}' then"
        " if nextval({counter}) < {enough} then signal sqlstate '{code}' set message_text = 'refused'; end if; end if",
    ),
}


def refused_confirms(kind: str) -> tuple[Cause, ...]:
    """Reasons why the guard cannot record the confirm of a prepared transaction."""
    drop = "drop trigger refuse_{code}" + (" on saga_guard" if kind == "postgresql" else "")
    causes: list[Cause] = []
    for code, attempts, heals in (("42501", 1, False), ("23514", 1, False), ("23505", 3, False), ("40001", 3, True)):
        counter = f"count_two_phase_confirm_refused_{code.lower()}"
        words = {"code": code, "lower": code.lower(), "counter": counter, "enough": 3 if heals else 9}
        tables = tuple(statement.format(**words) for statement in REFUSING_TRIGGERS[kind])
        causes.append(Cause(f"refused_{code}", "", attempts, heals, tables, (drop.format(**words),)))
    return tuple(causes)
