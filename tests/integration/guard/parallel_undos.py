"""Steps of one saga that share rows, references and unique values, and are undone in any order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from saga_activities.automatic.row_changes import end_scope
from saga_activities.bodies.sql_action import restore_body, sql_body, with_appended_changes, with_inherited_rows
from sagas.protocol import undo_scopes
from sagas.protocol.messages import GuardSpec
from sagas.protocol.outcomes import ROW_LOCKED, Outcome
from sagas.protocol.payloads import Invocation
from tests.integration.guard.automatic_steps import Tables
from tests.integration.guard.conftest import clock, new_attempt


@dataclass(frozen=True)
class ParallelStep:
    """The statements of a step; ``confirmed``: it is confirmed with ``confirm``, and these statements undo it then.

    ``nested`` is the nested saga of the step. The saga `same` is undone with its parent only, the others may be undone
    alone, and `fails` is.
    """

    run: Sequence[str]
    confirmed: Sequence[str] = ()
    confirm: Sequence[str] = ()
    nested: str = ""

    @property
    def undo_scope(self) -> str:
        return undo_scopes.of_nested("", self.nested) if self.nested in ("apart", "fails") else ""


Steps = Mapping[str, ParallelStep]
"""By name, in the order of their commits."""

CREATE = (
    "create table @counter (id int primary key, n int not null)",
    "create table @basket (id int primary key, n int default 0)",
    "create table @line (id int primary key, basket int not null, foreign key (basket) references @basket (id))",
    "create table @place (id int primary key, code varchar(9) unique, pos int unique)",
    "insert into @counter values (1, 0), (2, 7)",
    "insert into @basket values (5, 0)",
    "insert into @line values (100, 5)",
    "insert into @place values (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)",
)


def shared_basket(kind: str, basket: int) -> str:
    if kind == "mariadb":
        return f"insert into @basket (id) values ({basket}) on duplicate key update n = n"
    return f"insert into @basket (id) values ({basket}) on conflict (id) do nothing"


def generate(kind: str, seed: int) -> Steps:
    """Two to five steps with one or two statements each; the rarer kinds meet only if they are not too rare."""
    chance = Random(seed)
    steps: dict[str, ParallelStep] = {}
    for number in range(chance.randint(2, 5)):
        name = f"f#{number}"
        counter = chance.choice((1, 1, 2))
        nested = chance.choice(("", "", "same", "apart", "fails"))
        if chance.random() < 0.25:
            add = f"update @counter set n = n {{}} {chance.randint(1, 3)} where id = {counter}"
            # It need not restore the row exactly: the author decides what undoes a confirmed effect.
            undo = f"update @counter set n = n - {chance.randint(1, 3)} where id = {counter}"
            confirm = [f"update @counter set n = n + 50 where id = {counter}"] if chance.random() < 0.3 else []
            steps[name] = ParallelStep([add.format("+")], confirmed=[undo], confirm=confirm, nested=nested)
            continue
        free = chance.randint(4, 9)
        pool = [
            [f"update @counter set n = n + 1 where id = {counter}"],
            [f"update @counter set n = 1 - n where id = {counter}"],
            [shared_basket(kind, 1), f"insert into @line values ({number}, 1)"],
            [f"delete from @place where id = {chance.randint(1, 3)}"],
            [f"insert into @place values ({10 + number}, '{chance.choice('abcd')}', {free})"],
            [f"update @place set code = '{chance.choice('abcd')}' where id = {chance.randint(1, 3)}"],
            [f"update @place set pos = {chance.randint(1, 6)} where id = {chance.randint(1, 3)}"],
            ["update @place set pos = pos + 10"],
            ["delete from @line where basket = 5", "delete from @basket where id = 5"],
        ]
        # Undone alone, it needs the values and references of its rows, and other steps may have these.
        parts = pool[:2] if nested == "fails" else chance.sample(pool, 2)
        steps[name] = ParallelStep([statement for part in parts for statement in part], nested=nested)
    names = list(steps)
    chance.shuffle(names)
    # The first step restores both rows, whatever the statements of confirmed steps leave.
    return {"first": ParallelStep(["update @counter set n = n + 7"]), **{name: steps[name] for name in names}}


async def play(tables: Tables, steps: Steps, saga: str) -> list[str]:
    """Run the steps, and confirm those that are; returns the names of those that are done in the end.

    A nested saga goes on while others run, and ends if it waits for no row. Steps that wait for rows are tried again
    then; if all nested sagas wait, the first step is rejected.
    """
    done: list[str] = []
    remaining = list(steps)
    open_nested = {step.nested for step in steps.values() if step.nested}
    while remaining or open_nested:
        waiting = []
        for name in remaining:
            outcome = await tables.do(steps[name].run, name, _saga(saga, steps[name]), steps[name].undo_scope)
            if outcome.failure is not None and outcome.failure.type == ROW_LOCKED:
                waiting.append(name)
            elif outcome.kind == "done":
                done.append(name)
        ended = open_nested - {steps[name].nested for name in waiting}
        for nested in sorted(ended):
            done = await _end_nested(tables, steps, done, saga, nested)
        open_nested -= ended
        remaining = waiting if ended else waiting[1:]
    await _confirm_all(tables, steps, [name for name in done if not steps[name].nested], saga)
    return done


async def _end_nested(tables: Tables, steps: Steps, done: list[str], saga: str, nested: str) -> list[str]:
    """Confirm and complete a nested saga, or undo it; returns the steps that are done then."""
    own = [name for name in done if steps[name].nested == nested]
    if nested == "fails":
        await undo_all(tables, steps, own, saga)
        return [name for name in done if name not in own]
    await _confirm_all(tables, steps, own, saga)
    if own and (scope := steps[own[0]].undo_scope):
        await end_scope(tables.database.engine, tables.entry(saga=saga).saga_id, scope)
    return done


async def _confirm_all(tables: Tables, steps: Steps, names: Sequence[str], saga: str) -> None:
    for name in names:
        if steps[name].confirmed:
            await confirm(tables, name, steps[name], saga)


def _saga(root: str, step: ParallelStep) -> str:
    return f"{root}/{step.nested}" if step.nested else root


async def confirm(tables: Tables, name: str, step: ParallelStep, saga: str) -> None:
    entry = tables.entry(name, _saga(saga, step))
    guard = GuardSpec("shop", images=True)
    arguments = {"connection": "shop", "run": [{"sql": tables.named(text)} for text in step.confirm]}
    invocation = Invocation("sql", arguments, str(entry), entry.saga_id, name, "confirm", 1, guard=guard)
    body = with_appended_changes(sql_body(arguments, invocation, new_attempt()), invocation)
    assert (await tables.database.guard.confirm(entry, body, **clock())).kind == "done"


async def undo(
    tables: Tables, name: str, step: ParallelStep, saga: str = "saga", undone_steps: tuple[str, ...] | None = None
) -> Outcome:
    entry = tables.entry(name, _saga(saga, step))
    guard = GuardSpec("shop", undone_steps=undone_steps)
    invocation = Invocation("sql.restore", {}, str(entry), entry.saga_id, name, "undo", 1, guard=guard)
    arguments = {"connection": "shop", "run": [{"sql": tables.named(text)} for text in step.confirmed]}
    confirmed = with_inherited_rows(sql_body(arguments, invocation, new_attempt()), invocation)
    body = restore_body({}, invocation, new_attempt())
    return await tables.database.guard.undo(entry, body, known_done=True, confirmed_body=confirmed, **clock())


async def undo_all(tables: Tables, steps: Steps, order: Sequence[str], saga: str) -> None:
    """Undo the steps in this order; one that has to wait for the undo of a later change is tried again."""
    open_steps = list(order)
    while open_steps:
        waiting = []
        for name in open_steps:
            outcome = await undo(tables, name, steps[name], saga)
            if outcome.infrastructure:
                waiting.append(name)
            else:
                assert outcome.kind == "done", (name, outcome.park_reason or outcome, steps, order)
        assert len(waiting) < len(open_steps), (steps, order)
        open_steps = waiting
