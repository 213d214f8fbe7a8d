"""Rows of the wrong definitions, and the parts that they share.

In each text `⟦` precedes the character a diagnostic points at; it is removed before parsing.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated

from pydantic import Field

from sagas.actions.registry import Action, Actions
from sagas.definition.parser.draft import KafkaResources, ProjectContext, SparkResources

MARK = "⟦"


def _reserve(step: object, sku: str, quantity: int = 1) -> None: ...
def _release(step: object, sku: str, quantity: int = 1) -> None: ...
def _book(step: object) -> None: ...
def _charge(step: object, amount: str) -> None: ...
def _move(step: object, from_: str, to: str) -> None: ...
def _note(step: object, id: str, **marks: int) -> None: ...
def _pack(step: object, boxes: Annotated[list[Annotated[int, Field(gt=0)]], Field(max_length=2)]) -> None: ...
def _fetch(step: object, n: str) -> None: ...
def _count(step: object, n: int, sizes: Sizes | None = None) -> None: ...


@dataclass(frozen=True)
class Sizes:
    width: Decimal


@dataclass(frozen=True)
class Price:
    amount: Decimal
    count: int


def _price(step: object) -> Price:
    return Price(Decimal(1), 1)


ACTIONS = Actions(
    [
        Action("shop.reserve", _reserve, connection="shop"),
        Action("shop.release", _release, connection="shop"),
        Action("shop.book", _book, connection="shop"),
        Action("shop.tell", _book, connection="shop", rejects=False),
        Action("shop.price", _price, connection="shop"),
        Action("shop.move", _move, connection="shop"),
        Action("shop.note", _note, connection="shop"),
        Action("shop.pack", _pack, connection="shop"),
        Action("shop.fetch", _fetch, connection="shop"),
        Action("shop.count", _count, connection="shop"),
        Action("bank.charge", _charge),
        Action("bank.refund", _charge),
        Action("bank.blind", _book, idempotent=False),
    ]
)

KAFKA = KafkaResources("shop")
SPARK = SparkResources("shop", {"lake": {"type": "sql"}, "glue": {"type": "glue"}, "far": {"type": "rest"}})
CONNECTIONS = {
    "shop": {"kind": "sql"},
    "crm": {"kind": "http", "remembers_rejections": False},
    "bank": {"kind": "http"},
    "old": {"kind": "http", "idempotent": False},
}


@dataclass(frozen=True)
class Mistake:
    """``about`` names the test; ``text`` the definition with its mark; ``also``: other codes that may appear."""

    code: str
    about: str
    text: str
    also: tuple[str, ...] = ()
    spark: SparkResources = SPARK
    kafka: KafkaResources = KAFKA
    locks: str | None = "shop"
    vars: tuple[str, ...] | None = None

    @property
    def project(self) -> ProjectContext:
        return ProjectContext(ACTIONS, CONNECTIONS, self.spark, self.kafka, self.locks, self.vars)

    @property
    def clean(self) -> str:
        return self.text.replace(MARK, "")

    @property
    def place(self) -> tuple[int, int]:
        before = self.text[: self.text.index(MARK)]
        return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


def saga(steps: str, top: str = "") -> str:
    return f"saga: shop\n{top}steps:\n{steps}"


RESERVE = "  - {id: reserve, uses: shop.reserve, with: {sku: a}, compensate: shop.release}\n"


def spark(arguments: str, *, more: str = "", top: str = "") -> str:
    """A saga of one Spark step."""
    return saga(f"  - {{id: a, uses: spark, with: {{sql: select 1 as a, {arguments}}}{more}}}\n", top)


WAIT = "  - {id: pay, uses: wait, with: {signal: paid}}\n"
BOOK = "  - {id: book, uses: shop.book, pivot: true}\n"
NOTIFY = "notify:\n  - {{when: parked, {one}}}\n"
TOLD = "uses: http, with: {{url: 'http://crm.example', json: '${{{{ {it} }}}}'}}"
TELL = "  - {id: tell, uses: shop.tell}\n"
EACH = "  - {{id: a, uses: shop.tell, for_each: ⟦'{}', effect: none}}\n"
INPUT = """input:
  type: object
  required: [name, count, price, card, lines]
  properties:
    name: {type: string}
    count: {type: integer}
    price: {type: string}
    card: {type: string, x-sensitive: true}
    lines: {type: array, items: {type: object, properties: {sku: {type: string}}}}
"""
