"""An automatic undo finds an order that the constraints of the tables allow, or the step is refused before it commits.

Nobody else touches a row here, so a parked undo is a failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from tests.helpers.sampling import mostly_slow
from tests.integration.guard.automatic_steps import Tables

pytestmark = pytest.mark.slow

ALL = ("postgres", "mariadb", "sqlite")

TREE = ["create table @category (id int primary key, parent_id int references @category(id), name varchar(20))"]
QUEUE = [
    "create table @queue (id int primary key, pos int unique, note varchar(20))",
    "insert into @queue values (30, 1, 'x'), (20, 2, 'y'), (10, 3, 'z')",
]
LINES = [
    "create table @orders (id int primary key, first_line int, total int)",
    "create table @line (id int primary key, order_id int not null references @orders(id), n int)",
    "create table @part (id int primary key, line_id int not null references @line(id))",
    "insert into @orders values (1, null, 5), (2, null, 6)",
    "insert into @line values (10, 1, 1), (11, 1, 2), (20, 2, 1)",
    "insert into @part values (100, 10), (101, 11), (102, 20)",
]
RING = [
    "create table @a (id int primary key, b_id int)",
    "create table @b (id int primary key, a_id int references @a(id))",
    "insert into @a values (1, null), (2, null)",
    "insert into @b values (1, 1), (2, 2)",
]
RING_CLOSED = [*RING, "alter table @a add foreign key (b_id) references @b(id)", "update @a set b_id = id"]


@dataclass(frozen=True)
class Case:
    """Tables and the statements of each step; ``on`` are the databases where the step itself is possible."""

    name: str
    tables: Sequence[str]
    steps: Sequence[Sequence[str]]
    on: Sequence[str] = ALL


LONG = 150
"""More rows than one query reads, and more than there are attempts at an order."""


def chain(length: int, order: str) -> list[str]:
    """Rows of @queue whose numbers must be taken back one after another; by primary key they have this order."""
    ids = {"up": lambda n: n, "down": lambda n: 1000 - n, "mixed": lambda n: n * 7919 % 1009}[order]
    numbers = reversed(range(1, length)) if order == "down" else range(1, length)
    return [QUEUE[0], f"insert into @queue values {', '.join(f'({ids(n)}, {n}, null)' for n in numbers)}"]


CASES = [
    Case(
        "the rows of a tree in one delete",
        [*TREE, "insert into @category values (1, null, 'a'), (2, 1, 'b'), (3, 2, 'c')"],
        [["delete from @category where id in (1, 2, 3)"]],
        on=("postgres", "sqlite"),  # MariaDB checks each row at once, and deletes in the order of the key
    ),
    Case(
        "the rows of a tree whose parents come last",
        [*TREE, "insert into @category values (3, null, 'a')", "insert into @category values (2, 3, 'b'), (1, 2, 'c')"],
        [["delete from @category where id in (1, 2, 3)"]],
    ),
    Case(
        "a tree, leaves first",
        [*TREE, "insert into @category values (1, null, 'a'), (2, 1, 'b'), (3, 2, 'c'), (4, 2, 'd')"],
        [[f"delete from @category where id = {id}" for id in (4, 3, 2, 1)]],
    ),
    Case("an inserted tree", TREE, [["insert into @category values (1, null, 'a'), (2, 1, 'b'), (3, 2, 'c')"]]),
    Case("an inserted tree, upside down", TREE, [["insert into @category values (3, null, 'a'), (2, 3, 'b')"]]),
    Case(
        "a tree with another root",
        [*TREE, "insert into @category values (1, null, 'a'), (2, 1, 'b'), (3, 2, 'c')"],
        [
            [
                "update @category set parent_id = null where id = 3",
                "update @category set parent_id = 3 where id = 2",
                "update @category set parent_id = 2 where id = 1",
            ]
        ],
    ),
    Case("an inserted row that refers to itself", TREE, [["insert into @category values (1, 1, 'a')"]]),
    Case(
        "a row that refers to itself",
        [*TREE, "insert into @category values (1, 1, 'a'), (2, 1, 'b')"],
        [["delete from @category where id = 2", "delete from @category where id = 1"]],
        on=("postgres", "sqlite"),
    ),
    Case(
        "two rows that refer to each other",
        [
            *TREE,
            "insert into @category values (1, null, 'a'), (2, 1, 'b')",
            "update @category set parent_id = 2 where id = 1",
        ],
        [["delete from @category where id in (1, 2)"]],
        on=("postgres", "sqlite"),
    ),
    Case(
        "two rows that refer to each other, opened first",
        [
            *TREE,
            "insert into @category values (1, null, 'a'), (2, 1, 'b')",
            "update @category set parent_id = 2 where id = 1",
        ],
        [["update @category set parent_id = null where id = 1", "delete from @category where id in (2, 1)"]],
        on=("postgres", "sqlite"),
    ),
    Case(
        "an insert, references to it, and its cycle",
        [*TREE, "insert into @category values (1, null, 'a')"],
        [
            [
                "insert into @category values (2, 1, 'b')",
                "update @category set parent_id = 2 where id = 1",
                "insert into @category values (3, 2, 'c')",
                "update @category set parent_id = 3 where id = 1",
            ]
        ],
    ),
    Case(
        "a queue that moves up",
        QUEUE,
        [["delete from @queue where id = 30", "update @queue set pos = pos - 1 where pos > 1"]],
        on=("postgres",),  # in the order of the heap; elsewhere in that of the key, where 10 would meet 20
    ),
    Case(
        "a queue that moves up, in the order of the key",
        [QUEUE[0], "insert into @queue values (10, 1, 'x'), (20, 2, 'y'), (30, 3, 'z')"],
        [["delete from @queue where id = 10", "update @queue set pos = pos - 1 where pos > 1"]],
    ),
    Case("a new numbering", QUEUE, [["update @queue set pos = pos + 10"], ["update @queue set pos = pos - 20"]]),
    Case("a long chain", chain(LONG, "up"), [["update @queue set pos = pos - 1"]]),
    Case("a long chain, downward", chain(LONG, "down"), [["update @queue set pos = pos + 1"]]),
    Case(
        "a long chain in no order",
        chain(LONG, "mixed"),
        [["update @queue set pos = pos - 1 where pos > 0"]],
        on=("postgres", "sqlite"),
    ),
    Case(
        "a long chain in no order, referenced",
        [
            *chain(LONG, "mixed"),
            "create table @ticket (id int primary key, queue_id int references @queue(id))",
            "insert into @ticket select id, id from @queue",
        ],
        [["update @queue set pos = pos - 1 where pos > 0"]],
        on=("postgres", "sqlite"),
    ),
    Case(
        "a swap of unique values",
        QUEUE,
        [
            [
                "update @queue set pos = null where id = 30",
                "update @queue set pos = 1 where id = 20",
                "update @queue set pos = 2 where id = 30",
            ]
        ],
    ),
    Case(
        "a swap with a row that is gone afterwards",
        QUEUE,
        [["delete from @queue where id = 30", "update @queue set pos = 1 where id = 10"]],
    ),
    Case(
        "a swap of primary keys by delete and insert",
        QUEUE,
        [["delete from @queue where id in (10, 20)", "insert into @queue values (10, 2, 'y'), (20, 3, 'z')"]],
    ),
    Case(
        "an insert and a delete of the same key",
        QUEUE,
        [["insert into @queue values (1, 9, 'n')", "delete from @queue where id = 1"]],
    ),
    Case(
        "a delete, an insert and an update of the same key",
        QUEUE,
        [
            [
                "delete from @queue where id = 10",
                "insert into @queue values (10, 8, 'n')",
                "update @queue set pos = 3 where id = 10",
            ]
        ],
    ),
    Case(
        "several tables, children first",
        LINES,
        [
            [
                "delete from @part where line_id in (10, 11)",
                "delete from @line where order_id = 1",
                "delete from @orders where id = 1",
            ]
        ],
    ),
    Case(
        "several tables, in several steps",
        LINES,
        [
            ["delete from @part where id = 100", "update @line set n = 3 where id = 10"],
            ["delete from @line where id = 10", "insert into @orders values (3, null, 1)"],
            ["insert into @line values (10, 3, 7)", "insert into @part values (100, 10)"],
            ["update @orders set total = total + 1"],
        ],
    ),
    Case(
        "a ring over two tables, opened first",
        RING_CLOSED,
        [["update @a set b_id = null where id = 1", "delete from @b where id = 1", "delete from @a where id = 1"]],
        on=("postgres", "mariadb"),  # SQLite adds no constraint to a table
    ),
    Case(
        "a ring over two tables, made by the step",
        RING_CLOSED,
        [
            [
                "insert into @a values (3, null)",
                "insert into @b values (3, 3)",
                "update @a set b_id = 3 where id = 3",
                "update @a set b_id = 1 where id = 2",
            ]
        ],
        on=("postgres", "mariadb"),
    ),
    Case(
        "deferrable constraints",
        [
            "create table @d (id int primary key, pos int unique deferrable, up int references @d(id) deferrable)",
            "insert into @d values (1, 1, null), (2, 2, 1), (3, 3, 2)",
        ],
        [["update @d set pos = 4 - pos", "update @d set pos = pos % 3 + 1"], ["delete from @d"]],
        on=("postgres",),
    ),
    Case(
        "constraints that are checked at the end of the transaction",
        [
            "create table @d (id int primary key, up int references @d(id) deferrable initially deferred)",
            "insert into @d values (1, null), (2, 1)",
        ],
        [["delete from @d where id = 1", "update @d set up = null where id = 2"], ["insert into @d values (1, 2)"]],
        on=("postgres", "sqlite"),
    ),
    Case(
        "unique values with references to them",
        [
            "create table @d (id int primary key, code int unique, up int references @d(code))",
            "insert into @d values (3, 3, null), (2, 2, 3), (1, 1, 2)",
        ],
        [["update @d set code = code + 1, up = up + 1"]],
        on=("postgres",),
    ),
    Case(
        "an exclusion constraint",
        [
            "create table @room (id int primary key, during int4range, exclude using gist (during with &&))",
            "insert into @room values (1, '[1,3)'), (2, '[3,5)'), (3, '[5,9)')",
        ],
        [
            [
                "delete from @room where id = 1",
                "update @room set during = '[1,4)' where id = 2",
                "update @room set during = '[4,9)' where id = 3",
            ]
        ],
        on=("postgres",),
    ),
    Case(
        "shifted ranges of an exclusion constraint",
        [
            "create table @room (id int primary key, during int4range, exclude using gist (during with &&))",
            "insert into @room values (2, '[1,3)'), (1, '[3,5)'), (3, '[5,9)')",
        ],
        [["update @room set during = int4range(lower(during) - 2, upper(during) - 2)"]],
        on=("postgres",),
    ),
    Case(
        "a row behind a referenced one",
        [*LINES, "create unique index n_@line on @line (n, order_id)".replace("n_@line", "n_line")],
        [["update @line set n = n - 1 where order_id = 1", "update @line set n = n + 5 where order_id = 1"]],
        on=("sqlite",),
    ),
]


CASES_BY_NAME = {case.name: case for case in CASES}
REPETITIONS = {"a long chain, downward", "a long chain in no order"}


@pytest.mark.parametrize("case", mostly_slow(CASES_BY_NAME, CASES_BY_NAME.keys() - REPETITIONS, CASES_BY_NAME))
async def test_the_undo_finds_an_order(tables: Tables, case: Case) -> None:
    if tables.kind not in case.on:
        pytest.skip("this database refuses the step itself")
    await tables.sql(*case.tables)
    before = await tables.dump()
    for number, run in enumerate(case.steps):
        outcome = await tables.do(run, step=f"step{number}")
        assert outcome.kind == "done", outcome.failure
    for number in reversed(range(len(case.steps))):
        outcome = await tables.undo(step=f"step{number}")
        assert outcome.kind == "done", outcome.park_reason
    assert await tables.dump() == before


BLOCKED = {
    # the step, a change by others, and what takes it back
    "delete from @queue where id = 30": (
        "insert into @queue values (5, 1, 'other')",
        "delete from @queue where id = 5",
        "the row id=30 of",
    ),
    "insert into @queue values (5, 9, 'new')": (
        "insert into @ticket values (1, 5)",
        "delete from @ticket",
        "",  # PostgreSQL's message names the constraint, SQLite's check of deferred keys no row
    ),
    "update @queue set pos = 8 where id = 10": (
        "insert into @queue values (5, 3, 'other')",
        "update @queue set pos = 7 where id = 5",
        "the row id=10 of",
    ),
}


@pytest.mark.parametrize(("statement", "others"), BLOCKED.items(), ids=[key.split()[0] for key in BLOCKED])
async def test_a_row_of_others_in_the_way_parks_the_undo_until_it_is_gone(
    tables: Tables, statement: str, others: tuple[str, str, str]
) -> None:
    change, repair, named = others
    await tables.sql(*QUEUE, "create table @ticket (id int primary key, queue_id int references @queue(id))")
    before = await tables.sql("select * from @queue where id >= 10 order by id")
    assert (await tables.do([statement])).kind == "done"
    await tables.sql(change)
    changed = await tables.dump()
    outcome = await tables.undo()
    assert "cannot be restored" in str(outcome.park_reason)
    assert named in str(outcome.park_reason)
    assert await tables.dump() == changed
    await tables.sql(repair)
    assert (await tables.undo()).result == {"restored": 1}
    assert await tables.sql("select * from @queue where id >= 10 order by id") == before


async def test_rows_that_a_person_has_repaired_are_not_in_the_way(tables: Tables) -> None:
    await tables.sql(*QUEUE)
    before = await tables.dump()
    await tables.do(["update @queue set pos = pos + 10", "update @queue set pos = pos - 11 where id > 10"])
    await tables.sql("update @queue set pos = 3 where id = 10")
    assert (await tables.undo()).result == {"restored": 2}
    assert await tables.dump() == before


async def test_a_step_whose_undo_would_fail_is_refused(tables: Tables) -> None:
    """A row that its table would not accept again: the constraint is younger than the row."""
    if tables.kind != "postgres":
        pytest.skip("only PostgreSQL has constraints that existing rows may violate")
    await tables.sql(
        "create table @stock (id int primary key, n int)",
        "insert into @stock values (1, -5)",
        "alter table @stock add constraint positive check (n > 0) not valid",
    )
    before = await tables.dump()
    for statement in ("delete from @stock", "update @stock set n = 5"):
        outcome = await tables.do([statement], step=statement[:6])
        assert (outcome.kind, outcome.retryable) == ("failed", False)
        assert outcome.failure is not None
        assert "the undo would fail, as the row id=1 of public.stock" in outcome.failure.message
        assert 'violates check constraint "positive"' in outcome.failure.message
    assert await tables.dump() == before


async def test_a_row_of_mariadb_that_must_refer_to_itself_is_refused(tables: Tables) -> None:
    if tables.kind != "mariadb":
        pytest.skip("only MySQL and MariaDB refuse to delete such a row")
    await tables.sql("create table @node (id int primary key, root int not null references @node(id))")
    outcome = await tables.do(["insert into @node values (1, 1)"])
    assert outcome.failure is not None
    assert "the undo would fail" in outcome.failure.message
    assert await tables.dump() == {"node": []}
