"""The books of the shop, checked by SQL after the sagas have run: nothing is lost, nothing is there twice.

Every check counts rows that must not exist. ``run`` is a temporary table with one row for each saga that was
started: its basket, its definition and the state that Temporal reports. So the sagas' own account is held
against what really stands in the database.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from saga_cli.output import echo


@dataclass(frozen=True, slots=True)
class BasketState:
    """One saga according to the engine: ``state`` as in `saga show`, ``phase`` forward, committed or backward."""

    basket: str
    saga: str
    state: str
    phase: str = "forward"


@dataclass(frozen=True, slots=True)
class Invariant:
    """``sql`` selects the rows that contradict the ``rule``, the first column saying which one it is."""

    subject: str
    rule: str
    sql: str


@dataclass(frozen=True, slots=True)
class InvariantResult:
    """How a check ended: ``wrong`` names up to three of the ``count`` rows that contradict its rule."""

    invariant: Invariant
    count: int
    violations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StateTotals:
    """The rows in the database of all sagas that ended in one state, as sums."""

    state: str
    runs: int
    orders: int
    units_held: int
    units_sold: int
    money: Decimal
    coupons: int


@dataclass(frozen=True, slots=True)
class ShopTotals:
    """The shop as a whole, from its own columns: the right-hand side of the sums."""

    units_initial: int
    units_on_shelf: int
    units_held: int
    units_sold: int
    limits: Decimal
    available: Decimal
    held: Decimal
    charged: Decimal
    orders: int
    coupons: int


@dataclass(frozen=True, slots=True)
class Accounts:
    """Everything the summary shows."""

    totals: tuple[StateTotals, ...]
    shop: ShopTotals
    results: tuple[InvariantResult, ...]

    @property
    def balanced(self) -> bool:
        return not any(finding.count for finding in self.results)


# Where the goods of an order have left the shop.
_DELIVERED_STATES = "('packed', 'collected')"

INVARIANTS: tuple[Invariant, ...] = (
    Invariant(
        "stock",
        "initial = on shelf + reserved + sold, for every product",
        "select sku from stock where initial <> on_shelf + reserved + sold",
    ),
    Invariant(
        "stock",
        "what is reserved is what the baskets hold, for every product",
        "select sku from stock left join (select sku, sum(quantity) units from reservation group by sku) r "
        "using (sku) where reserved <> coalesce(units, 0)",
    ),
    Invariant(
        "stock",
        "what is sold is what left with an order, for every product",
        "select sku from stock left join (select sku, sum(quantity) units from order_line join orders "
        f"using (order_id) where state in {_DELIVERED_STATES} group by sku) o using (sku) "
        "where sold <> coalesce(units, 0)",
    ),
    Invariant(
        "money",
        "limit = available + held + charged, for every household",
        "select household_id from account where spending_limit <> available + held + charged",
    ),
    Invariant(
        "money",
        "what is held and charged is what the charges say, for every household",
        "select household_id from account left join (select household_id, "
        "sum(amount) filter (where state = 'held') holds, sum(amount) filter (where state = 'charged') charges "
        "from charge group by household_id) c using (household_id) "
        "where held <> coalesce(holds, 0) or charged <> coalesce(charges, 0)",
    ),
    Invariant(
        "money",
        "every order costs its lines less its coupons, and exactly that was charged",
        "select o.basket_id from orders o left join charge c on c.id = o.charge_id "
        "left join (select order_id, sum(amount) price from order_line group by order_id) l using (order_id) "
        "left join (select basket_id, sum(value) off from redemption group by basket_id) r "
        "on r.basket_id = o.basket_id where o.total <> coalesce(l.price, 0) - coalesce(r.off, 0) "
        "or c.amount is distinct from o.total or c.state is distinct from 'charged'",
    ),
    Invariant(
        "money",
        "no money was charged without an order",
        "select c.basket_id from charge c left join orders o on o.charge_id = c.id "
        "where c.state in ('held', 'charged') and o.order_id is null",
    ),
    Invariant(
        "coupons",
        "every coupon used this week is in one redemption, and vice versa",
        "select coalesce(c.upc, r.upc) from (select * from coupon where redeemed_by is not null) c "
        "full join redemption r on (r.basket_id, r.household_id, r.campaign, "
        "r.upc) = (c.redeemed_by, c.household_id, c.campaign, c.upc) where c.upc is null or r.upc is null",
    ),
    Invariant(
        "orders",
        "a completed saga has exactly one order, and its goods have left",
        "select r.basket_id from run r left join orders o using (basket_id) "
        f"where r.state = 'COMPLETED' and (o.state is null or o.state not in {_DELIVERED_STATES})",
    ),
    Invariant(
        "orders",
        "every order belongs to a saga past its point of no return",
        "select o.basket_id from orders o left join run r using (basket_id) "
        "where r.basket_id is null or r.state = 'COMPENSATED' or r.phase <> 'committed'",
    ),
    Invariant(
        "orders",
        "every packed order has a shipment of its units, and every shipment such an order",
        "select coalesce(o.order_id, s.order_id)::text from (select order_id, sum(quantity) units from orders "
        "join order_line using (order_id) where state = 'packed' group by order_id) o "
        "full join shipment s using (order_id) where o.units is distinct from s.units",
    ),
    Invariant(
        "orders",
        "the customer was notified of every packed order, once",
        "select o.order_id::text from orders o left join announcement a using (order_id) "
        "where (o.state = 'packed') <> (a.order_id is not null)",
    ),
    Invariant(
        "undone",
        "a compensated saga leaves nothing: no goods, no money, no coupon, no order, no slot, no gift",
        "select basket_id from run where state = 'COMPENSATED' and (basket_id in (select basket_id from reservation) "
        "or basket_id in (select basket_id from redemption) or basket_id in (select basket_id from orders) "
        "or basket_id in (select basket_id from charge where state in ('held', 'charged')) "
        "or basket_id in (select basket_id from slot_booking) or basket_id in (select basket_id from gift_given))",
    ),
    Invariant(
        "extras",
        "delivery slots and gifts: what is gone is what the orders have",
        "select slot from delivery_slot left join (select slot, count(*) places from slot_booking group by slot) b "
        "using (slot) where booked <> coalesce(places, 0) "
        "union all select name from gift where initial <> on_shelf + (select count(*) from gift_given g "
        "where g.gift = gift.name)",
    ),
)


async def check_accounts(engine: AsyncEngine, runs: Sequence[BasketState]) -> Accounts:
    """Hold the database against what the engine says, in one snapshot of the database."""
    async with engine.connect() as connection:
        connection = await connection.execution_options(isolation_level="REPEATABLE READ")
        async with connection.begin():
            await _insert_runs(connection, runs)
            return Accounts(
                totals=await _totals(connection),
                shop=await _shop_totals(connection),
                results=tuple([await apply_invariant(connection, check) for check in INVARIANTS]),
            )


async def _insert_runs(connection: AsyncConnection, runs: Sequence[BasketState]) -> None:
    await connection.exec_driver_sql(
        "create temporary table run (basket_id text primary key, saga text, state text, phase text) on commit drop"
    )
    if runs:
        await connection.execute(
            text("insert into run values (:basket, :saga, :state, :phase)"),
            [{"basket": run.basket, "saga": run.saga, "state": run.state, "phase": run.phase} for run in runs],
        )


async def apply_invariant(
    connection: AsyncConnection, invariant: Invariant, parameters: Mapping[str, object] | None = None
) -> InvariantResult:
    """The rows that contradict one rule. ``parameters`` are those that the SQL of the check names."""
    named = {name: value for name, value in (parameters or {}).items() if f":{name}" in invariant.sql}
    rows = (await connection.execute(text(invariant.sql), named)).all()
    return InvariantResult(invariant, len(rows), tuple(str(row[0]) for row in rows[:3]))


async def _totals(connection: AsyncConnection) -> tuple[StateTotals, ...]:
    rows = await connection.execute(
        text(
            "select r.state, count(*) runs, count(o.order_id) orders, "
            "coalesce(sum((select sum(quantity) from reservation v where v.basket_id = r.basket_id)), 0) held, "
            "coalesce(sum((select sum(quantity) from order_line l where l.order_id = o.order_id "
            f"and o.state in {_DELIVERED_STATES})), 0) sold, "
            "coalesce(sum((select sum(amount) from charge c where c.basket_id = r.basket_id "
            "and c.state in ('held', 'charged'))), 0) money, "
            "coalesce(sum((select count(*) from redemption d where d.basket_id = r.basket_id)), 0) coupons "
            "from run r left join orders o using (basket_id) group by r.state order by runs desc"
        )
    )
    return tuple(
        StateTotals(row.state, row.runs, row.orders, int(row.held), int(row.sold), row.money, int(row.coupons))
        for row in rows
    )


async def _shop_totals(connection: AsyncConnection) -> ShopTotals:
    row = (
        await connection.execute(
            text(
                "select s.*, a.*, (select count(*) from orders) orders, (select count(*) from redemption) coupons "
                "from (select sum(initial) initial, sum(on_shelf) on_shelf, sum(reserved) reserved, sum(sold) sold "
                "from stock) s, (select sum(spending_limit) limits, sum(available) available, sum(held) held, "
                "sum(charged) charged from account) a"
            )
        )
    ).one()
    return ShopTotals(
        units_initial=row.initial,
        units_on_shelf=row.on_shelf,
        units_held=row.reserved,
        units_sold=row.sold,
        limits=row.limits,
        available=row.available,
        held=row.held,
        charged=row.charged,
        orders=row.orders,
        coupons=row.coupons,
    )


def mismatches(accounts: Accounts) -> Mapping[str, tuple[object, object]]:
    """Subjects whose sum over the outcomes differs from the shop's own columns: subject → (outcomes, shop)."""
    totals, ledger = accounts.totals, accounts.shop
    pairs = {
        "units reserved": (sum(total.units_held for total in totals), ledger.units_held),
        "units sold": (sum(total.units_sold for total in totals), ledger.units_sold),
        "money": (sum((total.money for total in totals), Decimal()), ledger.held + ledger.charged),
        "orders": (sum(total.orders for total in totals), ledger.orders),
        "coupons": (sum(total.coupons for total in totals), ledger.coupons),
    }
    return {subject: pair for subject, pair in pairs.items() if pair[0] != pair[1]}


# Tables, money and check marks of the demo's summaries.


def format_money(amount: Decimal) -> str:
    """With two digits after the point."""
    return f"{amount:,.2f}"


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Numbers flush right, the first column flush left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for name, *numbers in rows:
        cells = [number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True)]
        echo("  ".join([name.ljust(widths[0]), *cells]))


def print_results(findings: Sequence[InvariantResult]) -> None:
    """One line for each check; what contradicts its rule is named."""
    for finding in findings:
        mark = "✖" if finding.count else "✔"
        extra = f": violated by {finding.count}, such as {', '.join(finding.violations)}" if finding.count else ""
        echo(f"  {mark} {finding.invariant.subject:<8} {finding.invariant.rule}{extra}")
