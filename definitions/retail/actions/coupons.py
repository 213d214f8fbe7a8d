"""Coupons: each was sent to one household and can be redeemed once."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from sagas import Rejected, Step, action


@dataclass(frozen=True)
class Redemption:
    """The amount that a coupon took off the price."""

    upc: str
    value: Decimal


@action("coupons.redeem", connection="shop")
async def redeem(step: Step, basket: str, household: str, campaign: str, upc: str, value: Decimal) -> Redemption:
    """Redeem one coupon of the household."""
    coupon = {"household": household, "campaign": campaign, "upc": upc}
    redeemed = await step.sql.one_or_none(
        "update coupon set redeemed_by = :basket where household_id = :household and campaign = :campaign "
        "and upc = :upc and redeemed_by is null and used_on is null returning upc",
        basket=basket,
        **coupon,
    )
    if redeemed is None:
        coupon_row = await step.sql.one_or_none(
            "select redeemed_by, used_on from coupon "
            "where household_id = :household and campaign = :campaign and upc = :upc",
            **coupon,
        )
        if coupon_row is None:
            raise Rejected(f"coupon {upc} was not sent to this household", **coupon)
        where = f"with basket {coupon_row.redeemed_by}" if coupon_row.redeemed_by else f"on {coupon_row.used_on}"
        raise Rejected(f"coupon {upc} has been used {where}", **coupon)
    await step.sql.execute(
        "insert into redemption (basket_id, household_id, campaign, upc, value) "
        "values (:basket, :household, :campaign, :upc, :value)",
        basket=basket,
        value=value,
        **coupon,
    )
    return Redemption(upc, value)


@action("coupons.restore", connection="shop", rejects=False)
async def restore(step: Step, basket: str, household: str, campaign: str, upc: str, value: Decimal) -> None:
    """Make a redeemed coupon good again."""
    await step.sql.one(
        "delete from redemption where basket_id = :basket and campaign = :campaign and upc = :upc returning upc",
        basket=basket,
        campaign=campaign,
        upc=upc,
    )
    await step.sql.one(
        "update coupon set redeemed_by = null where household_id = :household and campaign = :campaign "
        "and upc = :upc and redeemed_by = :basket returning upc",
        household=household,
        campaign=campaign,
        upc=upc,
        basket=basket,
    )
