"""Random sagas in YAML over one table of effects, and random plans of what their participant does in each attempt."""

from __future__ import annotations

import random
import re
from typing import Any

ACTIONS = """
from sagas import Rejected, Step, action


async def work(step: Step, plan: dict, n: int) -> dict:
    does = plan.get(f"{step.id}~{step.op}", plan.get(f"{step.id.partition('#')[0]}~{step.op}", ["ok"]))
    does = does[min(step.attempt, len(does)) - 1]
    insert = "insert into effect (saga_id, step, op, generation, n) values (:saga_id, :step, :op, :generation, :n)"
    values = {"saga_id": step.saga_id, "step": step.id, "op": step.op, "generation": step.generation, "n": n}
    await step.sql.execute(insert, **values)
    step.emit("effects", key=step.saga_id, value={"step": step.id, "op": step.op, "n": n})
    if does == "reject":
        raise Rejected(f"no {step.op} of {step.id}")
    if does == "fail":
        raise RuntimeError(f"{step.op} of {step.id} fails")
    if does == "twice":
        await step.sql.execute(insert, **values)
    return {"step": step.id, "n": n}


@action("work.do", connection="bank")
async def do(step: Step, plan: dict, n: int) -> dict:
    return await work(step, plan, n)


@action("work.undo", connection="bank")
async def undo(step: Step, plan: dict, n: int) -> dict:
    return await work(step, plan, n)


@action("work.undo_otherwise", connection="bank")
async def undo_otherwise(step: Step, plan: dict, n: int) -> dict:
    await step.sql.execute(
        "insert into effect (saga_id, step, op, generation, n) values (:saga_id, :step, 'other', :generation, :n)",
        saga_id=step.saga_id, step=step.id, generation=step.generation, n=n,
    )
    return {"undone": "otherwise"}


@action("work.confirm", connection="bank")
async def confirm(step: Step, plan: dict, n: int) -> dict:
    return await work(step, plan, n)
"""

SCHEMA = """
create table if not exists effect (
    saga_id text, step text, op text, generation int, n int check (n < 1000),
    primary key (saga_id, step, op, generation)
);
create table if not exists stock (saga_id text primary key, amount int not null check (amount >= 0));
"""

HEAD = """saga: {name}
id: "${{{{ input.id }}}}"
input:
  type: object
  required: [id, n, amount, go, items, plan]
  properties:
    id: {{type: string}}
    n: {{type: integer}}
    amount: {{type: integer}}
    go: {{type: boolean}}
    items: {{type: array, items: {{type: integer}}}}
    plan: {{type: object, properties: {{}}}}
defaults: {{connection: bank, retry: {{max_attempts: 2, initial_interval: 30ms, max_interval: 200ms}}}}
steps:
"""

SQL = """    uses: sql
    with:
      run: "update stock set amount = amount - :amount where saga_id = :id and amount >= :amount"
      params: {amount: "${{ input.amount }}", id: "${{ input.id }}"}
      expect_rows: 1
      rejected: not enough
"""
SQL_UNDO = """    compensate:
      uses: sql
      with:
        run: "update stock set amount = amount + :amount where saga_id = :id"
        params: {amount: "${{ input.amount }}", id: "${{ input.id }}"}
"""
NEVER_IN_TWO = ["fail", "fail", "ok"]
"""Both attempts of a step fail; what is retried without limit succeeds."""

WITH = '{plan: "${{ input.plan }}", n: "${{ input.n }}"}'
WITH_ITEM = '{plan: "${{ input.plan }}", n: "${{ item }}"}'


def definition(name: str, source: random.Random, *, parallel: bool = False) -> str:
    """Three to six steps of every kind that is shared, one after the other.

    ``parallel``: some have a sibling that runs beside them, see :func:`with_sibling`.
    """
    count = source.randint(3, 6)
    pivot = source.choice((None, None, count - 2, count - 1))
    savepoint = source.randrange(count - 1) if pivot is None and source.random() < 0.4 else None
    text, ids = HEAD.format(name=name), [chr(ord("a") + at) for at in range(count)]
    before: list[str] = []
    for at, id in enumerate(ids):
        needs, before = f"    needs: [{', '.join(before)}]\n", [id]
        kind = "plain" if at == pivot else source.choice(("plain", "plain", "sql", "each", "require", "if"))
        may_have = kind in ("plain", "each", "if") and at != savepoint and (pivot is None or at < pivot)
        if parallel and may_have and source.random() < 0.6:
            before.append(f"beside_{id}")
            text += f"  - id: beside_{id}\n{needs}"
            text += _python(source.choice(("plain", "each", "if")), source, after=False, is_pivot=False)
        text += f"  - id: {id}\n{needs}"
        if kind == "require" and at not in (0, savepoint):
            text += '    uses: require\n    with: {that: "${{ input.n < 35 }}", message: too many}\n'
            continue
        if kind == "sql" and (pivot is None or at < pivot):
            text += SQL + SQL_UNDO
        else:
            text += _python(kind, source, after=pivot is not None and at > pivot, is_pivot=at == pivot)
        text += "    savepoint: {attempts: 2}\n" if at == savepoint else ""
    return text + 'output: {n: "${{ input.n }}"}\n'


def _python(kind: str, source: random.Random, *, after: bool, is_pivot: bool) -> str:
    each = kind == "each"
    arguments = WITH_ITEM if each else WITH
    text = f"    uses: work.do\n    with: {arguments}\n"
    if each:
        text += '    for_each: "${{ input.items }}"\n'
    if kind == "if":
        text += '    if: "input.go"\n'
    if is_pivot:
        return text + "    pivot: true\n"
    if source.random() < 0.25:
        text += "    on_failure: continue\n"
    if source.random() < 0.3:
        text += f"    confirm: {{uses: work.confirm, with: {arguments}}}\n"
        confirmed = ", confirmed: {uses: work.undo_otherwise}" if source.random() < 0.5 else ""
        return text if after else text + f"    compensate: {{uses: work.undo, with: {arguments}{confirmed}}}\n"
    if after:
        return text
    other = source.random() < 0.4
    both = f"    compensate:\n      - {{uses: work.undo, with: {arguments}}}\n"
    return text + both + ("      - {uses: work.undo_otherwise}\n" if other else "")


def with_sibling(definition: str) -> frozenset[str]:
    """The steps beside which others run. Each must succeed in the end: it is not given how far its sibling, which no
    plan knows, has come when it fails."""
    return frozenset(re.findall(r"id: beside_(\w+)", definition))


def saga_input(id: str, source: random.Random, siblings: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The input of one saga: in most of them some attempts go wrong. ``siblings``: see :func:`with_sibling`."""
    plan: dict[str, list[str]] = {}
    for _ in range(source.choice((0, 0, 1, 1, 2, 3))):
        op = source.choice(("do", "do", "do", "undo", "confirm"))
        step = source.choice("abcdef") + source.choice(("", "", "#1"))
        plan[f"{step}~{op}"] = source.choice(
            (["fail", "ok"], ["twice", "ok"])
            if op == "do" and step[0] in siblings
            else (["reject"], ["fail", "ok"], ["fail", "reject"], NEVER_IN_TWO, ["twice", "ok"])
        )
    return {
        "id": id,
        "n": source.choice(range(40) if siblings else (*range(40), 2_000)),
        "amount": source.choice((1, 5, 60)),
        "go": source.random() < 0.6,
        "items": list(range(source.choice((0, 1, 2, 3)))),
        "plan": plan,
    }
