"""The batch actions of `benchmarks.bulk`: one statement for all items."""

from __future__ import annotations

from sagas import BatchStep, Item, action

_CHANGE = """
update account a set balance = balance {sign} v.amount
from (select id, sum(amount) as amount from unnest(cast(:ids as text[]), cast(:amounts as bigint[])) as i (id, amount)
      group by id) as v
where a.id = v.id
"""


async def _change(step: BatchStep, items: list[Item], sign: str) -> list[None]:
    ids, amounts = [item["id"] for item in items], [item["amount"] for item in items]
    await step.sql.execute(_CHANGE.format(sign=sign), ids=ids, amounts=amounts)
    return [None] * len(items)


@action("bench.take", connection="bench", batch=True, rejects=False)
async def take(step: BatchStep, items: list[Item]) -> list[None]:
    """Take from the accounts."""
    return await _change(step, items, "-")


@action("bench.give", connection="bench", batch=True, rejects=False)
async def give(step: BatchStep, items: list[Item]) -> list[None]:
    """Give back to the accounts."""
    return await _change(step, items, "+")
