"""Random extracts of a reconciliation: few ids, steps and values, so that all of them meet in every way."""

from __future__ import annotations

import random
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from saga_activities.messaging.outbox import HELD, NEW, PUBLISHED
from saga_spark.reconcile.extracts import (
    ENTRIES_FILE,
    ENTRY_SCHEMA,
    GUARD_SCHEMA,
    OUTBOX_SCHEMA,
    SAGA_SCHEMA,
    SAGAS_FILE,
    ParquetRowWriter,
    effect_schema,
)
from saga_spark.reconcile.topic_extract import NEVER, RECORD_SCHEMA, RECORDS_FILE, TopicsRead
from sagas.settings.reconcile import EffectTable

NOW = 1_790_000_000.0
HORIZON = NOW - 86_400
AGES = (10, 50, 1700, 1900, 2500, 4000, 5500, 80_000, 90_000)
STEPS = ("a", "a#0", "a#1", "b", "b#0", "c", "notify-1", "consumer/x")
STATES = ("COMPLETED", "COMPLETED", "COMPENSATED", "RESIDUE", "TERMINATED", "FAILED", "RUNNING", "PARKED")
AMOUNTS = (None, "1", "1.0", "1.00", "-1", "-0", "0", "2.5", "2.505", "2.51", "1e1", "10", " 3 ", "0.0000000004",
           "0.0000000006", "12345678901234567890123456789.123456789")  # fmt: skip
TOPICS = ("orders", "news", "compacted")
CONNECTIONS = ("shop", "bank")


@dataclass(frozen=True, slots=True)
class RandomBooks:
    folder: Path
    effects: tuple[EffectTable, ...]
    since: float | None
    topics: TopicsRead | None


def write_books(folder: Path, seed: int, sagas: int = 40) -> RandomBooks:
    """Write extracts with about so many sagas. The same seed gives the same books."""
    return _Generator(random.Random(seed), folder, sagas).write()


class _Generator:
    def __init__(self, chance: random.Random, folder: Path, sagas: int) -> None:
        self.chance, self.folder = chance, folder
        self.ids = [f"s{number}" for number in range(sagas)] + ["s1/b#0", "s2/a", "ß'\\\n☃", "S1", 's"', "s1 "]
        self.effects = tuple(self._effect_table(number) for number in range(8))

    def maybe(self, share: float) -> bool:
        return self.chance.random() < share

    def time(self) -> float:
        return NOW - self.chance.choice(AGES)

    def write(self) -> RandomBooks:
        self._write_sagas()
        self._write_guard()
        self._write_outbox()
        for effects in self.effects:
            self._write_effects(effects)
        floors = {"orders": NOW - 3000, "compacted": NEVER}
        topics = TopicsRead(0, 0, NOW - 5000, floors) if self.maybe(0.8) else None
        return RandomBooks(self.folder, self.effects, NOW - 1800 if self.maybe(0.3) else None, topics)

    def _write_sagas(self) -> None:
        with (
            ParquetRowWriter(self.folder / SAGAS_FILE, SAGA_SCHEMA) as sagas,
            ParquetRowWriter(self.folder / ENTRIES_FILE, ENTRY_SCHEMA) as entries,
        ):
            for saga_id in self.ids:
                if self.maybe(0.15):
                    continue
                state = self.chance.choice(STATES)
                is_open = state in ("RUNNING", "PARKED")
                judged = not is_open and self.maybe(0.9)
                ended = None if is_open else self.time()
                sagas.add(saga_id, self.chance.choice(("checkout", "other")), state, self.time(), ended, judged)
                for step in STEPS if judged and state not in ("TERMINATED", "FAILED") else ():
                    if self.maybe(0.7):
                        said = self.chance.choice(("DONE", "CONFIRMED", "COMPENSATED", "PARKED"))
                        flags = (said in ("DONE", "CONFIRMED"), self.maybe(0.05), self.maybe(0.05))
                        entries.add(saga_id, step, self._generation(), said, self.maybe(0.9), *flags)

    def _generation(self) -> int:
        return 1 if self.maybe(0.9) else 2

    def _write_guard(self) -> None:
        for connection in CONNECTIONS:
            with ParquetRowWriter(self.folder / "guard" / f"{connection}.parquet", GUARD_SCHEMA) as rows:
                for saga_id in [*self.ids, "ghost"]:
                    for step in (*STEPS, "d"):
                        for generation in (1, 2):
                            if not self.maybe(0.75 if generation == 1 and connection == "shop" else 0.07):
                                continue
                            reason = self.chance.choice(("do", "do", "do", "do", "undo", None))
                            created = self.time() if reason is not None or self.maybe(0.5) else None
                            row = (reason, self.maybe(0.2), created, self._result())
                            rows.add(connection, saga_id, step, generation, *row)

    def _result(self) -> str | None:
        n, total = self.chance.choice(("1", "2", "3", "null")), self.chance.choice(AMOUNTS[1:])
        given = "null" if n == "null" else f'"{n}"'
        return self.chance.choice(
            (None, "{}", "[]", '"text"', *[f'{{"total":"{total}","batch":{{"id":{given}}},"note":"\\u00df\\n"}}'] * 8)
        )

    def _write_outbox(self) -> None:
        with (
            ParquetRowWriter(self.folder / "outbox" / "shop.parquet", OUTBOX_SCHEMA) as outbox,
            ParquetRowWriter(self.folder / RECORDS_FILE, RECORD_SCHEMA) as records,
        ):
            for number in range(3 * len(self.ids)):
                event, saga_id = f"e{number}", self.chance.choice([*self.ids, ""])
                step, topic = self.chance.choice((*STEPS, "never")), self.chance.choice(TOPICS)
                status = self.chance.choice((NEW, PUBLISHED, PUBLISHED, PUBLISHED, HELD))
                if self.maybe(0.9):
                    published = self.time() if status == PUBLISHED else None
                    outbox.add(
                        "shop", saga_id, step, self._generation(), event, topic, status, self.time(), published, False
                    )
                for place in range(self.chance.choice((0, 1, 1, 1, 1, 2))):
                    records.add("shop", event, topic, place, number, saga_id, step, self.time(), False)
            records.add("shop", None, "news", 0, 7, "", None, NOW - 10, False)

    def _effect_table(self, number: int) -> EffectTable:
        binding: dict[str, Any] = self.chance.choice(
            ({"saga_id": "x"}, {"guard_key": "x"}, {"result": {"batch.id": "x"}}, {"saga_id": "x"})
        )
        step = None if "saga_id" in binding and self.maybe(0.4) else self.chance.choice(("a", "b", "c"))
        return EffectTable(
            connection="shop",
            table=f"t{number}",
            key=("id",),
            sagas=self.chance.choice(((), ("checkout",), ("checkout", "other"))),
            step=step,
            amounts={"total": "total", "n": "batch.id"} if step and self.maybe(0.6) else {},
            tolerance=self.chance.choice((None, Decimal("0.01"), Decimal("0.0000000015"))),
            many=self.maybe(0.3),
            holds=self.maybe(0.2),
            time="at" if self.maybe(0.6) else None,
            **binding,
        )  # fmt: skip

    def _write_effects(self, effects: EffectTable) -> None:
        schema = effect_schema(len(effects.amounts))
        with ParquetRowWriter(self.folder / "effects" / f"{effects.name}.parquet", schema) as rows:
            for number, saga_id in enumerate([*self.ids, *self.ids[:5], None, "stranger"]):
                if self.maybe(0.2):
                    continue
                bound = saga_id
                if effects.binding == "guard_key" and saga_id is not None:
                    suffix = "" if self.maybe(0.9) else "@2"
                    bound = f"{saga_id}/{self.chance.choice((effects.step, f'{effects.step}#0'))}{suffix}"
                elif effects.binding == "result":
                    bound = self.chance.choice(("1", "2", "3", "4", None))
                amounts = [self.chance.choice(AMOUNTS) for _ in effects.amounts]
                time = self.time() if effects.time and self.maybe(0.95) else None
                rows.add(bound, f'{{"id":{number}}}', time, *amounts)
