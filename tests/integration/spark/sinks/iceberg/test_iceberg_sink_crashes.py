"""Iceberg: killed and frozen publishers, two concurrent ones, and several tables published atomically for readers."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from saga_spark.sinks.sink import CommitConflict, Publication, UndoConflict, validate_together
from sagas.errors import UsageError
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.sampling import mostly_slow
from tests.integration.spark.sinks.iceberg.iceberg_environment import Lake, open_lake, some
from tests.integration.spark.staged_outputs import Publisher

pytestmark = pytest.mark.slow

PUBLISH = "sink.publish([publication], state, together=False)"
REVERT = "sink.revert([publication], together=False)"
PLACE = "sink.prepare(publication)"
ARM = "from saga_spark.sinks.iceberg import commit, data_files, table_draft\nat({})"


@contextmanager
def lake_with_ours(kind: str, server: DatabaseServer, root: Path) -> Iterator[tuple[Lake, Publication]]:
    """A table with the rows 1 and 2, and a merge that replaces 2 and adds 3, placed and ready to publish."""
    with open_lake(kind, server, root) as lake:
        lake.publish(lake.staged(some(1, 2)))
        ours = lake.staged([{"id": 2, "name": "new"}, {"id": 3, "name": "new"}], saga="s2", mode="merge", key="id")
        assert lake.sink.check(ours) == []
        yield lake, ours


OLD = [(1, "n1"), (2, "n2")]
NEW = [(1, "n1"), (2, "new"), (3, "new")]


def seen(lake: Lake) -> list[tuple[int, str]]:
    return [(row["id"], row["name"]) for row in lake.rows()]


# ── killed ──────────────────────────────────────────────────────────────────────────────────────────────────────

PUBLISH_POINTS = {
    "sql: a file is linked": ("sql", "data_files, 'link_or_copy', 'after'", PLACE, OLD),
    "sql: files are rewritten": ("sql", "table_draft, 'find_replaced_files', 'after'", PUBLISH, OLD),
    "sql: before the swap": ("sql", "commit, '_swap_metadata_location', 'before'", PUBLISH, OLD),
    "sql: in the transaction of the swap": ("sql", "commit, '_swap_metadata_location', 'after'", PUBLISH, OLD),
    "sql: the answer is lost": ("sql", "commit, '_commit_sql', 'after'", PUBLISH, NEW),
    "rest: before the request": ("rest", "commit, '_commit_single', 'before'", PUBLISH, OLD),
    "rest: the answer is lost": ("rest", "commit, '_commit_single', 'after'", PUBLISH, NEW),
}
QUICK_POINTS = {"sql: in the transaction of the swap", "rest: the answer is lost"}


@pytest.mark.parametrize("point", mostly_slow(PUBLISH_POINTS, QUICK_POINTS))
def test_a_killed_publisher_leaves_old_or_new_rows_and_the_next_completes(
    server: DatabaseServer, tmp_path: Path, point: str
) -> None:
    kind, where, act, rows = PUBLISH_POINTS[point]
    with lake_with_ours(kind, server, tmp_path) as (lake, ours):
        state = lake.sink.read_state([ours])
        assert Publisher(lake.settings, ours, state, ARM.format(where), act).outcome()[0] == -9
        assert seen(lake) == rows
        [done] = lake.publish(ours)
        assert done.adopted == (rows == NEW)
        assert seen(lake) == NEW
        lake.revert(ours)
        with pytest.raises(CommitConflict):
            lake.sink.publish([ours], state, together=False)
        assert seen(lake) == OLD


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("'_swap_metadata_location', 'before'", NEW),
        pytest.param("'_commit_sql', 'after'", OLD, marks=pytest.mark.slow),
    ],
)
def test_a_killed_undo_leaves_old_or_new_rows_and_the_next_completes(
    server: DatabaseServer, tmp_path: Path, where: str, rows: list[tuple[int, str]]
) -> None:
    with lake_with_ours("sql", server, tmp_path) as (lake, ours):
        lake.publish(ours)
        arm = ARM.format(f"commit, {where}")
        assert Publisher(lake.settings, ours, None, arm, REVERT).outcome()[0] == -9
        assert seen(lake) == rows
        lake.revert(ours)
        assert seen(lake) == OLD


# ── frozen, and two at once ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kind", "where"),
    [("sql", "'_swap_metadata_location'"), pytest.param("rest", "'_commit_single'", marks=pytest.mark.slow)],
)
def test_a_publisher_frozen_at_the_commit_publishes_nothing_after_the_undo(
    server: DatabaseServer, tmp_path: Path, kind: str, where: str
) -> None:
    with lake_with_ours(kind, server, tmp_path) as (lake, ours):
        arm = ARM.format(f"commit, {where}, 'before', signal.SIGSTOP")
        frozen = Publisher(lake.settings, ours, lake.sink.read_state([ours]), arm, PUBLISH)
        frozen.frozen()
        lake.publish(ours)
        lake.revert(ours)
        frozen.thaw()
        code, output = frozen.outcome()
        assert code == 0
        assert output.startswith("CommitConflict: ")
        assert seen(lake) == OLD


def test_a_publisher_frozen_in_the_swap_does_not_lock_the_table(server: DatabaseServer, tmp_path: Path) -> None:
    with lake_with_ours("sql", server, tmp_path) as (lake, ours):
        arm = ARM.format("commit, '_swap_metadata_location', 'after', signal.SIGSTOP")
        arm += "\ncommit._COMMIT_TIMEOUTS = commit._COMMIT_TIMEOUTS.replace('30s', '1s')"
        frozen = Publisher(lake.settings, ours, lake.sink.read_state([ours]), arm, PUBLISH)
        frozen.frozen()
        lake.publish(ours)  # waits until the server has ended the frozen transaction
        lake.revert(ours)
        frozen.thaw()
        code, output = frozen.outcome()
        assert (code, output.split(":")[0]) == (0, "InfrastructureError"), output
        assert seen(lake) == OLD


@pytest.mark.parametrize(
    ("kind", "same"),
    [("sql", True), *(pytest.param(*case, marks=pytest.mark.slow) for case in (("sql", False), ("rest", True)))],
)
def test_one_of_two_concurrent_publishers_commits(
    server: DatabaseServer, tmp_path: Path, kind: str, same: bool
) -> None:
    """With the same target it is published once; with two targets the other one has to re-read."""
    with open_lake(kind, server, tmp_path) as lake:
        first = lake.staged(some(1))
        second = first if same else lake.staged(some(2), saga="s2")
        both = [first, second]
        states = [lake.sink.read_state([publication]) for publication in both]
        arm = ARM.format("commit, 'commit', 'before', signal.SIGSTOP").replace("at(", REACH)
        running = [Publisher(lake.settings, *pair, arm, PUBLISH) for pair in zip(both, states, strict=True)]
        for publisher in running:
            publisher.frozen()
        for publisher in running:
            publisher.thaw()
        output = sorted(run.outcome()[1].strip() for run in running)
        assert output[1] == "done"
        assert output[0].startswith("CommitConflict: ")
        assert len(lake.ids()) == 1
        lake.publish(*({publication.tag.target: publication for publication in both}.values()))
        assert lake.ids() == ([1] if same else [1, 2])


# The sink has imported `commit` by name.
REACH = "from saga_spark.sinks.iceberg import iceberg_sink\ncommit = iceberg_sink\nat("


# ── together ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=["sql", "rest"])
def lake(request: pytest.FixtureRequest, server: DatabaseServer, tmp_path: Path) -> Iterator[Lake]:
    with open_lake(request.param, server, tmp_path) as opened:
        yield opened


def pair(lake: Lake, generation: int, *ids: int, saga: str = "s1") -> list[Publication]:
    return [
        lake.staged(some(*ids), name, name=name.partition(".")[2], mode="overwrite", generation=generation, saga=saga)
        for name in ("sales.facts", "sales.totals")
    ]


class Reader(threading.Thread):
    """Looks at both tables all the time. When the first has not changed meanwhile, both are of one time."""

    def __init__(self, lake: Lake) -> None:
        super().__init__(daemon=True)
        self.catalog = lake.catalog
        self.done = threading.Event()
        self.pairs: list[tuple[int, ...]] = []
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            while not self.done.is_set():
                first = self.catalog.load_table("sales.facts")
                second = self.catalog.load_table("sales.totals")
                if self.catalog.load_table("sales.facts").metadata_location == first.metadata_location:
                    ids = tuple(sum(table.scan().to_arrow().column("id").to_pylist()) for table in (first, second))
                    if not self.pairs or self.pairs[-1] != ids:
                        self.pairs.append(ids)
        except Exception as error:  # noqa: BLE001 -- the test that waits for this thread raises it
            self.error = error

    def stop(self) -> list[tuple[int, ...]]:
        self.done.set()
        self.join(60)
        if self.error is not None:
            raise self.error
        return self.pairs


def test_a_reader_sees_both_tables_of_a_joint_publication_or_none(lake: Lake) -> None:
    lake.publish(*pair(lake, 1, 1, saga="old"), together=True)
    reader = Reader(lake)
    reader.start()
    for generation in (1, 2, 3):
        ours = pair(lake, generation, 10, 20)
        done = lake.publish(*ours, together=True)
        assert [outcome.adopted for outcome in done] == [False, False]
        assert [publication.adopted for publication in lake.publish(*ours, together=True)] == [True, True]
        lake.revert(*ours, together=True)
        assert (lake.ids("sales.facts"), lake.ids("sales.totals")) == ([1], [1])
    assert set(reader.stop()) <= {(1, 1), (30, 30)}


def test_a_conflict_in_one_table_publishes_none_of_a_joint_publication(lake: Lake) -> None:
    lake.publish(pair(lake, 1, 1, saga="old")[0])
    ours = pair(lake, 1, 2)  # the second table does not exist yet
    state = lake.sink.read_state(ours)
    lake.append(some(7))
    with pytest.raises(CommitConflict):
        lake.sink.publish(ours, state, together=True)
    assert lake.ids() == [1, 7]
    assert not lake.exists("sales.totals")
    lake.publish(*ours, together=True)
    assert (lake.ids("sales.facts"), lake.ids("sales.totals")) == ([2], [2])


def test_a_refused_undo_of_one_table_reverts_none_of_a_joint_publication(lake: Lake) -> None:
    lake.publish(*pair(lake, 1, 1, saga="old"), together=True)
    ours = pair(lake, 1, 2)
    lake.publish(*ours, together=True)
    lake.append(some(9), "sales.totals")
    with pytest.raises(UndoConflict, match=r"lake\.sales\.totals"):
        lake.revert(*ours, together=True)
    assert (lake.ids("sales.facts"), lake.ids("sales.totals")) == ([2], [2, 9])


def test_a_kill_between_two_tables_of_a_joint_publication_shows_nothing(server: DatabaseServer, tmp_path: Path) -> None:
    with open_lake("sql", server, tmp_path) as lake:
        ours = pair(lake, 1, 2)
        act = f"sink.publish([publication, {ours[1]!r}], state, together=True)"
        arm = ARM.format("commit, '_swap_metadata_location', 'after'")
        killed = Publisher(lake.settings, ours[0], lake.sink.read_state(ours), arm, act)
        assert killed.outcome()[0] == -9
        assert not lake.exists("sales.facts")
        assert not lake.exists("sales.totals")
        lake.publish(*ours, together=True)
        assert (lake.ids("sales.facts"), lake.ids("sales.totals")) == ([2], [2])


def test_two_publications_of_one_table_are_one_commit_with_two_snapshots(lake: Lake) -> None:
    ours = [lake.staged(some(number), name=f"part{number}", saga="s1") for number in (1, 2)]
    lake.publish(*ours, together=True)
    assert lake.ids() == [1, 2]
    assert len(lake.table().snapshots()) == 2
    lake.revert(*reversed(ours), together=True)
    assert lake.ids() == []


def test_a_catalog_without_transactions_refuses_together_and_publishes_alone(
    server: DatabaseServer, tmp_path: Path
) -> None:
    with open_lake("plain", server, tmp_path) as lake:
        ours = pair(lake, 1, 1)
        for publication in ours:
            lake.sink.validate(publication.output)
            with pytest.raises(UsageError, match="the catalog lake cannot commit several tables together"):
                validate_together([publication.output], lake.settings)
        refuse_together(lake, ours)
        lake.publish(*ours)
        assert (lake.ids("sales.facts"), lake.ids("sales.totals")) == ([1], [1])


def refuse_together(lake: Lake, ours: Sequence[Publication]) -> None:
    with pytest.raises(UsageError, match="cannot commit several tables together"):
        lake.sink.publish(ours, lake.sink.read_state(ours), together=True)
    assert not lake.exists("sales.facts")
    assert not lake.exists("sales.totals")
