"""The sagas that `make patterns` starts here, the processes it kills, and the invariant of each run."""

from __future__ import annotations

SUCCESS = {"day": "monday"}
FAILURE = {"day": "tuesday"}  # a till is still open
KILLED = {"day": "wednesday"}
KILL = ("worker", "in the publication", "locked", ("shop", "lock table report in share mode"))

INVARIANT = "the report has the rows of the closed days once, and no others"
READS = {
    "published": (
        "shop",
        "select coalesce(json_agg(json_build_array(day, product, amount) order by 1), '[]') from report",
    ),
    "expected": (
        "shop",
        "select coalesce(json_agg(json_build_array(day, product, amount) order by 1), '[]') from "
        "(select day, product, sum(amount) as amount from sale join closed_day using (day) group by 1, 2) as sold",
    ),
}


def holds(published: list[list], expected: list[list]) -> bool:
    return sorted(published) == sorted(expected)
