"""Random values on random paths through the engine: what arrives is what was sent.

SAGA_VALUES_SEED is the seed of the paths; a failure names its seed.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from saga_activities.kafka.record_codec import MalformedRecord
from saga_activities.ledger.rows import make_record, read_run, write_rows
from saga_cli.output import to_json
from saga_workers.serve.request_body import BadRequest
from saga_workers.trigger.retry import PoisonMessage
from sagas.errors import SagaError
from sagas.text.exact_json import encode_json
from sagas.text.json_mistakes import InvalidJson
from sagas.workflow.json_payloads import UnreadableValue
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_database
from tests.helpers.sampling import every_nth, scaled
from tests.integration.values.documents import FAMOUS, FAMOUS_TEXTS, KINDS
from tests.integration.values.engine import (
    HALF_PAIR,
    DefinitionRefused,
    Ended,
    Stage,
    StartRefused,
    new_mariadb_database,
    open_stage,
)
from tests.integration.values.entries import ENTRIES, can_enter, join_pairs
from tests.integration.values.journeys import EXITS, PASSES, can_leave, exit_steps, in_numeric
from tests.integration.values.oracle import (
    Json,
    Number,
    Text,
    map_numbers,
    read_json,
    same,
    schema_of,
    text_of,
    with_integers,
    write_json,
)

SEED = int(os.environ.get("SAGA_VALUES_SEED", "33"))
PATHS, SEEDS = scaled(80, 200), scaled((SEED,), range(SEED, SEED + 26))
AT_LEAST = scaled(1, 3)
"""Journeys of one seed that use each entry, pass and exit."""
HARD_NUMBERS = tuple(map(Number, (*FAMOUS, "9007199254740993", "-18446744073709551617")))


@dataclass(frozen=True)
class Journey:
    """``schema``: none, number (each number is one) or integer (where it has no fraction)."""

    value: Json
    schema: str
    entry: str
    passes: tuple[str, ...]
    exit: str

    def __str__(self) -> str:
        return f"{self.entry} ({self.schema}) → {' → '.join((*self.passes, self.exit))}: {write_json(self.value)}"


ROUTE = {"entry": tuple(ENTRIES), "pass": tuple(PASSES), "exit": EXITS}
LASTING = {"kafka.request", "nested saga"}
"""The stage cannot undo them, so that nothing after them may be refused."""

Order = tuple[Sequence[str], ...]


class Dealer:
    """Deals entries, passes and exits in turn: those that fewer journeys have used come first.

    The same draw gives the same journey, so that Hypothesis can repeat it; after a failure all draws get its order, so
    that it can be shrunk.
    """

    def __init__(self) -> None:
        self.used: Counter[str] = Counter()
        self._orders: dict[tuple[int, str], Order] = {}
        self._last: Order | None = None
        self._failed: Order | None = None

    def journey(self, value: Json, schema: str, number: int, length: int) -> Journey:
        key = (number, write_json(value))
        if key not in self._orders:
            self._orders[key] = self._failed or tuple(
                sorted(names, key=lambda name: self.used[f"{kind} {name}"]) for kind, names in ROUTE.items()
            )
        self._last = self._orders[key]
        entries, passes, exits = self._last
        entry = next(name for name in entries if can_enter(name, value, schema != "none"))
        sent = with_integers(value) if schema == "integer" and entry not in ("YAML", "TOML") else value
        chosen: list[str] = []
        for name in passes:
            passed = PASSES[name]("input.doc", sent, "s") if len(chosen) < length else None
            if passed is not None and (passed.ending == "passes" or LASTING.isdisjoint(chosen)):
                chosen.append(name)
                sent = passed.value
                if passed.ending != "passes":
                    break
        way = next(name for name in exits if can_leave(name, sent))
        return Journey(value, schema, entry, tuple(chosen), way)

    def keep_order(self) -> None:
        self._failed = self._failed or self._last

    def count(self, journey: Journey) -> None:
        self.used.update(
            [f"entry {journey.entry}", f"exit {journey.exit}", *(f"pass {name}" for name in journey.passes)]
        )

    def rare(self) -> list[str]:
        """Names that too few journeys have used."""
        names = [f"{kind} {name}" for kind, of_kind in ROUTE.items() for name in of_kind]
        return [f"{name}: {self.used[name]}" for name in names if self.used[name] < AT_LEAST]


def journeys(dealer: Dealer, documents: st.SearchStrategy[Json]) -> st.SearchStrategy[Journey]:
    schemas = st.sampled_from(["none", "number", "integer"])
    return st.builds(dealer.journey, documents, schemas, st.integers(0, 2**62), st.sampled_from([3, 2, 1]))


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def stage(
    loop: asyncio.Runner,
    postgres_server: DatabaseServer,
    mariadb_server: DatabaseServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("values")
    urls = {
        "postgres": new_database(postgres_server),
        "mariadb": loop.run(new_mariadb_database(mariadb_server)),
        "sqlite": f"sqlite:///{folder / 'values.db'}",
    }
    opened = open_stage(folder, urls)
    yield loop.run(opened.__aenter__())
    loop.run(opened.__aexit__(None, None, None))


async def travel(stage: Stage, journey: Journey) -> None:
    value, schema = journey.value, {}
    if journey.schema != "none":
        inner = schema_of(value, integers=journey.schema == "integer")
        schema = {"type": "object", "required": ["doc"], "properties": {"doc": inner}}
    with TemporaryDirectory() as folder:
        entered = ENTRIES[journey.entry](value, schema, Path(folder))
    from_input = entered.path.startswith("input")
    if from_input and journey.schema == "integer":
        value = with_integers(value)
    head = "saga: values\n"
    if from_input:
        default = {"type": "object", "additionalProperties": True}
        head += f"input: {_yaml(schema or default)}\n"
    path, steps, ending = entered.path, entered.steps, "passes"
    for at, name in enumerate(journey.passes):
        passed = PASSES[name](path, value, f"s{at}")
        if passed is not None:
            path, value, steps = passed.path, passed.value, steps + passed.steps
            ending = passed.ending if ending == "passes" else ending
    way = journey.exit if can_leave(journey.exit, value) else "output"
    definition = stage.definition(f"{head}steps:\n{steps}{exit_steps(way, path)}")
    stage.receiver.requests.clear()
    before = await stage.written() if ending != "passes" else ()
    ended = await stage.run(definition, entered.input, entered.variables)
    if ending == "refused" or (ending == "either" and ended.state == "COMPENSATED"):
        assert ended.state == "COMPENSATED", ended
        assert ended.reason is not None
        assert ended.reason["kind"] in ("failed", "definition"), ended.reason
        assert ended.reason["step"] == f"s{len(journey.passes) - 1}", ended.reason
        assert await stage.written() == before
        return
    assert ended.state == "COMPLETED", ended.reason
    if way in ("query", "header", "form", "path", "body"):
        arrived, expected = _text(stage, way), text_of(value)
        assert arrived == expected, f"{way} has {arrived!r}, not {expected!r}"
        return
    if way == "ledger":  # its stories are jsonb
        value = map_numbers(value, in_numeric)
    for arrived in await _documents(stage, way, ended):
        assert same(arrived, value), f"{way} has {write_json(arrived)}, not {write_json(value)}"


def _yaml(schema: Any) -> str:
    return join_pairs(write_json(schema)).replace("\x7f", "\\u007f")


def _text(stage: Stage, way: str) -> str:
    ((target, headers, body),) = stage.receiver.requests
    match way:
        case "query":
            return parse_qs(urlsplit(target).query, keep_blank_values=True, strict_parsing=True)["v"][0]
        case "header":
            return headers["x-v"]
        case "form":
            return parse_qs(body.decode(), keep_blank_values=True, strict_parsing=True)["v"][0]
        case "path":
            return unquote(target.removeprefix("/v/"))
    return body.decode().removeprefix("v")


async def _documents(stage: Stage, way: str, ended: Ended) -> list[Json]:
    """Documents that have arrived, in each form that this exit has."""
    story = ended.view.to_json()
    match way:
        case "request":
            (text,) = await stage.events("sqlite", ended.id)
            return [read_json(text)["v"], read_json(ended.output)]
        case "emit" | "publish":
            (text,) = await stage.events("mariadb" if way == "emit" else "sqlite", ended.id)
            return [read_json(text)["v"]]
        case "json":
            ((_, _, body),) = stage.receiver.requests
            return [read_json(body)["v"]]
        case "show":
            texts = [to_json(story), to_json(story, indent=2)]
            return [read_json(text)["output"] for text in texts]
        case "ledger":
            now = datetime.now(UTC)
            record = make_record(story, saga_id=ended.id, labels=None, updated_at=now, input_digest=None)
            assert record is not None
            engine = stage.engine("postgres")
            async with engine.begin() as connection:
                await write_rows(connection, [record])
            row = await read_run(engine, ended.id)
            assert row is not None
            return [read_json(encode_json(row.view.to_json()))["output"]]
    return [read_json(ended.output)]


@pytest.mark.slow
@pytest.mark.parametrize("number", SEEDS)
def test_what_arrives_is_what_was_sent(loop: asyncio.Runner, stage: Stage, number: int) -> None:
    dealer = Dealer()

    def run(journey: Journey) -> None:
        try:
            loop.run(travel(stage, journey))
            dealer.count(journey)
        except BaseException as error:
            dealer.keep_order()
            error.add_note(f"SAGA_VALUES_SEED={number}: {journey}")
            raise

    for documents in KINDS:
        of_one_kind = settings(
            max_examples=PATHS // len(KINDS),
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
        )
        seed(number)(of_one_kind(given(journeys(dealer, documents))(run)))()
    assert not dealer.rare(), f"SAGA_VALUES_SEED={number}: too few journeys use {', '.join(dealer.rare())}"


async def travel_all(stage: Stage, journeys: Iterable[Journey]) -> None:
    for journey in journeys:
        try:
            await travel(stage, journey)
        except BaseException as error:
            error.add_note(str(journey))
            raise


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_entry_keeps_the_hard_numbers(loop: asyncio.Runner, stage: Stage, entry: str) -> None:
    numbers = [value for value in HARD_NUMBERS if can_enter(entry, value, typed=True)]
    assert len(numbers) >= 8
    schemas = ("number", "integer")
    journeys = [Journey(number, schema, entry, (), "output") for number in numbers for schema in schemas]
    loop.run(travel_all(stage, every_nth(3, journeys, turn=list(ENTRIES).index(entry))))


@pytest.mark.parametrize("name", PASSES)
def test_every_pass_keeps_the_hard_values(loop: asyncio.Runner, stage: Stage, name: str) -> None:
    values: list[Json] = [*HARD_NUMBERS, {"amounts": list(HARD_NUMBERS)}, "0012.50", *FAMOUS_TEXTS]
    journeys = [Journey(value, "none", "JSONL", (name,), "output") for value in values]
    loop.run(travel_all(stage, every_nth(5, journeys, turn=list(PASSES).index(name))))


@pytest.mark.parametrize("way", EXITS)
def test_every_exit_keeps_the_hard_values(loop: asyncio.Runner, stage: Stage, way: str) -> None:
    journeys = [Journey(value, "none", "JSONL", (), way) for value in (*HARD_NUMBERS, *FAMOUS_TEXTS)]
    loop.run(travel_all(stage, every_nth(3, journeys, turn=EXITS.index(way))))


NO_NUMBERS = ("012.50", "-01", "NaN", "-Infinity", "1.", "1,5", ".5", "+1", "0x10", "1_000")
IN_ITS_OWN_SYNTAX = ("YAML", "TOML")
"""They have other numbers than JSON, but none with a leading zero either."""
REFUSALS = (
    SagaError,
    BadRequest,
    PoisonMessage,
    MalformedRecord,
    DefinitionRefused,
    StartRefused,
    UnreadableValue,
    InvalidJson,
)
REFUSED = [
    (entry, text)
    for entry in ENTRIES
    if entry != "Parquet"
    for text in (NO_NUMBERS[:2] if entry in IN_ITS_OWN_SYNTAX else NO_NUMBERS)
]


def assert_refused(loop: asyncio.Runner, stage: Stage, journey: Journey) -> None:
    """The product refuses with an error of its own, before anything is written or sent."""
    before, runs = loop.run(stage.written()), stage.runs
    with pytest.raises(REFUSALS) as refused:
        loop.run(travel(stage, journey))
    message = str(refused.value)
    assert message
    assert not re.search(r"Decimal|Error\b|msgspec|codec|0x[0-9a-f]{6}", message), message
    assert (loop.run(stage.written()), stage.runs) == (before, runs)


HALF_PAIRS = ("\ud83d", "a\udc00b", {"\ud800": "1"})


@pytest.mark.parametrize("entry", [name for name in ENTRIES if name not in ("CSV", "Parquet")])
@pytest.mark.parametrize("value", HALF_PAIRS, ids=ascii)
def test_half_a_surrogate_pair_starts_nothing(loop: asyncio.Runner, stage: Stage, entry: str, value: Json) -> None:
    """Neither UTF-8 nor a database has a form for it. CSV and Parquet files cannot have one."""
    assert_refused(loop, stage, Journey(value, "none", entry, (), "output"))


COLUMNS = [name for name in PASSES if name.startswith("varchar column")]
REQUEST_ROW = 1
"""The row that seals a command, so that it is never written."""


@pytest.mark.parametrize("way", [*EXITS, *COLUMNS])
def test_half_a_surrogate_pair_leaves_whole_or_not_at_all(loop: asyncio.Runner, stage: Stage, way: str) -> None:
    """An action may return it, and JSON has an escape for it."""
    path, steps = "steps.given.result.text[0]", "  - {id: given, uses: half, effect: none}\n"
    if way in COLUMNS:
        passed = PASSES[way](path, HALF_PAIR, "out")
        assert passed is not None
        steps += passed.steps
    else:
        steps += exit_steps(way, path)
    definition = stage.definition(f"saga: values\nsteps:\n{steps}")
    stage.receiver.requests.clear()
    before = loop.run(stage.written())
    ended = loop.run(stage.run(definition, {}, {}))
    if way in ("output", "show", "ledger"):
        assert ended.state == "COMPLETED", ended.reason
        assert loop.run(_documents(stage, way, ended)) == [HALF_PAIR] * (2 if way == "show" else 1)
        return
    assert ended.state == "COMPENSATED", ended
    assert ended.reason is not None
    wanted = "printable ASCII" if way == "header" else "half a surrogate pair"
    assert (ended.reason["step"], wanted in ended.reason["message"]) == ("out", True), ended.reason
    assert sum(loop.run(stage.written())) == sum(before) + (REQUEST_ROW if way == "request" else 0)


NO_NAMES_TWICE = ("--set", "CSV", "Parquet", "Temporal")
"""Without a schema, `--set` and CSV take such a text for a string. Payloads of Temporal are written by its clients."""

AMBIGUOUS = '{"a": 1, "a": 2}'


@pytest.mark.parametrize("entry", [name for name in ENTRIES if name not in NO_NAMES_TWICE])
def test_a_name_that_an_object_has_twice_starts_nothing(loop: asyncio.Runner, stage: Stage, entry: str) -> None:
    """Nothing guesses which of the two values is meant."""
    text = AMBIGUOUS if entry != "TOML" else "{a = 1, a = 2}"
    assert_refused(loop, stage, Journey(Text(text), "none", entry, (), "output"))


@pytest.mark.sampled("entry", keep=36)
@pytest.mark.parametrize(("entry", "text"), REFUSED)
def test_what_is_no_number_starts_nothing(loop: asyncio.Runner, stage: Stage, entry: str, text: str) -> None:
    """Nothing is guessed: a saga has the number that was written, or does not start."""
    assert_refused(loop, stage, Journey(Text(text), "number", entry, (), "output"))
