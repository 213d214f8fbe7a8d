"""The sagas that `make patterns` starts here, the processes it kills, and the invariant of each run."""

from __future__ import annotations

START = "submit"
SUCCESS = {"baskets": [{"basket": "last", "account": "rich"}]}
FAILURE = {"baskets": [{"basket": "unpaid", "account": "poor"}]}
KILLED = {"baskets": [{"basket": f"{number}", "account": "rich"} for number in range(20)]}
KILL = ("trigger", "before the events' offsets", "offset", ("baskets", [f"basket-{number}" for number in range(20)]))

INVARIANT = "every basket that can pay is paid once, and has taken one pear"
READS = {
    "paid": ("shop", "select coalesce(json_agg(basket), '[]') from payment"),
    "taken": ("shop", "select 1000 - sum(free)::int from stock"),
}


def follow(input: dict) -> list[str]:
    return [f"basket-{basket['basket']}" for basket in input["baskets"]]


def holds(paid: list[str], taken: int) -> bool:
    return len(set(paid)) == len(paid) == taken and "unpaid" not in paid
