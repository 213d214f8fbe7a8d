"""The Spark jobs of the day's close: plain functions from DataFrames to a DataFrame."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def daily_facts(spark: Any, inputs: Any) -> DataFrame:
    """The day's order lines, each with how its product was promoted in its store.

    ``placement``: on display and in the mailer of that week. ``weeks_promoted``: in how many weeks of the whole year.
    """
    lines = inputs.lines.withColumn("product_id", F.col("sku").cast("int"))
    sold = lines.select("product_id", "store_id", F.col("week").alias("sold_in")).distinct()
    this_week = F.col("week") == F.col("sold_in")
    promoted = (
        # The small side goes to every task; the 20.9 million promotions are read once and never sorted.
        inputs.promotions.join(F.broadcast(sold), ["product_id", "store_id"])
        .groupBy("product_id", "store_id", "sold_in")
        .agg(
            F.max(this_week & (F.col("display_location") != "0")).alias("on_display"),
            F.max(this_week & (F.col("mailer_location") != "0")).alias("in_mailer"),
            F.count_distinct("week").cast("int").alias("weeks_promoted"),
        )
        .withColumnRenamed("sold_in", "week")
    )
    on_display, in_mailer = (F.coalesce(F.col(name), F.lit(False)) for name in ("on_display", "in_mailer"))
    placement = (
        F.when(on_display & in_mailer, "both").when(on_display, "display").when(in_mailer, "mailer").otherwise("none")
    )
    return lines.join(promoted, ["product_id", "store_id", "week"], "left").select(
        "order_id",
        "sku",
        "day",
        "store_id",
        "quantity",
        "amount",
        placement.alias("placement"),
        F.coalesce("weeks_promoted", F.lit(0)).alias("weeks_promoted"),
    )


def daily_totals(spark: Any, inputs: Any) -> DataFrame:
    """The day in a row for each placement: lines, units and money."""
    return inputs.facts.groupBy("day", "placement").agg(
        F.count(F.lit(1)).alias("lines"),
        F.sum("quantity").alias("units"),
        F.sum("amount").cast("decimal(12,2)").alias("amount"),
    )
