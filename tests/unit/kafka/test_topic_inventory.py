"""Inventory of a project's Kafka: the parts that need it, and the topics that they name."""

from __future__ import annotations

from pathlib import Path

import pytest

from saga_workers.topics.declared_readers import declares_readers
from saga_workers.topics.kafka_use import needs_trigger, uses_kafka
from saga_workers.topics.topic_creation import create_topic_commands
from saga_workers.topics.topic_inventory import event_topics, named_topics
from sagas.project import Project
from sagas.settings import load_settings

PUBLISH = """
  - id: tell
    uses: kafka.publish
    with: {topic: told, value: 1, hold: true}
"""
SEVERAL = """
  - id: tell
    uses: kafka.publish
    with:
      events:
        - {topic: first, value: 1, hold: true}
        - {topic: "${{ vars.topic }}", value: 1, hold: true}
"""
ASK = """
  - id: ask
    uses: kafka.request
    with: {topic: commands, value: 1}
    pivot: true
"""
STATEMENT = """
  - id: write
    uses: sql
    with:
      connection: shop
      run: "update x set y = 1"
      emit: [{topic: written, value: 1, hold: true}]
    compensate: {uses: sql, with: {connection: shop, run: "update x set y = 0"}}
"""
JOB = """
  - id: facts
    uses: spark
    with:
      job: "shop_jobs:facts"
      inputs: {orders: {topic: orders}, old: {topic: "${{ vars.topic }}"}, rates: {connection: shop, table: rates}}
      outputs: {facts: {topic: facts, key: id}, files: {parquet: out}}
      audit:
        - {output: facts, relationships: {column: id, to: {topic: ids}, field: value}}
        - {output: facts, reconcile: {with: {topic: booked}, key: id}}
  - id: alike
    uses: reconcile
    with: {left: {topic: facts}, right: {topic: mirror}, key: id}
"""
ONE = """
  - id: facts
    uses: spark
    with: {sql: select 1, output: {topic: "${{ vars.topic }}"}}
"""
FILES = """
  - id: facts
    uses: spark
    with: {sql: "select 'topic'", output: {parquet: out}}
"""
CONSUMER = """
from sagas import bridge, consumer

@consumer("orders", connection="shop")
async def book(message):
    pass

@bridge("raw", to="clean")
def clean(message):
    return message.value
"""


def project(root: Path, steps: str = "", settings: str = "", head: str = "", actions: str = "") -> Project:
    text = f'actions = ["./actions.py"]\n[connections.shop]\nurl = "postgresql://nobody@localhost/x"\n{settings}'
    (root / "saga.toml").write_text(text, encoding="utf-8")
    (root / "actions.py").write_text(actions, encoding="utf-8")
    (root / "definitions").mkdir()
    if steps:
        definition = f"saga: it\n{head}\nsteps:{steps}"
        (root / "definitions" / "it.saga.yaml").write_text(definition, encoding="utf-8")
    project = Project(load_settings(root, env={}))
    assert not [diagnostic for diagnostic in project.diagnostics if diagnostic.severity == "error"]
    return project


OUTBOX = '[kafka]\noutbox = "shop"\n'
LEDGER = '[ledger]\nconnection = "shop"\n'
SPARK = '[spark]\nledger = "shop"\n'


@pytest.mark.parametrize(
    ("settings", "head", "steps", "uses", "waits"),
    [
        ("", "", STATEMENT, False, False),  # an event alone stays in its outbox until Kafka is configured
        ("[kafka]\n", "", STATEMENT, True, False),
        (LEDGER, "", PUBLISH, True, False),
        (LEDGER, "", ASK, True, True),
        ("", "triggers: {kafka: {topic: paid}}", STATEMENT, True, True),
        ("", "description: not about kafka", STATEMENT, False, False),
        (SPARK, "", ONE, True, False),
        (SPARK, "", FILES, False, False),
    ],
)
def test_projects_that_need_kafka(
    tmp_path: Path, settings: str, head: str, steps: str, uses: bool, waits: bool
) -> None:
    actual_project = project(tmp_path, steps, settings, head)
    assert (uses_kafka(actual_project), needs_trigger(actual_project)) == (uses, waits)


@pytest.mark.parametrize(
    ("module", "reads"),
    [
        ("from sagas import bridge\n@bridge('raw', to='clean')\ndef clean(message): ...", True),
        ("import sagas\n@sagas.consumer('raw', connection='shop')\ndef book(message): ...", True),
        ("from sagas import consumer as on\n@on(\n 'raw', connection='shop')\nasync def book(message): ...", True),
        ("import sagas.actions.consumers as c\ndef f(m): ...\ng = c.bridge('raw', to='clean')(f)", True),
        ("from sagas import action\n# one day a @consumer(…)\n'@bridge('", False),
        ("from shop import consumer\nimport sagas\n@consumer('raw')\ndef book(message): ...", False),
        ("from sagas import consumer\n", False),
        ("from sagas import consumer\n@consumer(", False),
    ],
)
def test_triggers_consumers_and_bridges_are_readers(tmp_path: Path, module: str, reads: bool) -> None:
    (tmp_path / "book.py").write_text(module, encoding="utf-8")
    assert declares_readers(tmp_path / "book.py") is reads
    assert not declares_readers(tmp_path / "absent.py")


def test_consumers_need_kafka(tmp_path: Path) -> None:
    actual_project = project(tmp_path, actions=CONSUMER)
    assert uses_kafka(actual_project)
    assert needs_trigger(actual_project)
    assert named_topics(actual_project) == {
        "orders": {"read"}, "orders.dlq": {"read", "write"}, "raw": {"read"}, "raw.dlq": {"read", "write"},
        "clean": {"read", "write"},
    }  # fmt: skip


def test_topics_of_definitions(tmp_path: Path) -> None:
    actual_project = project(tmp_path, STATEMENT + SEVERAL + ASK, OUTBOX, "triggers: {kafka: {topic: first}}")
    assert named_topics(actual_project) == {
        "written": {"write"},
        "first": {"read", "write"},
        "first.dlq": {"read", "write"},
        "commands": {"write"},
        "saga-replies": {"read"},
        "saga-replies.dlq": {"read", "write"},
    }


def test_topics_of_spark_steps(tmp_path: Path) -> None:
    actual_project = project(tmp_path, JOB + SEVERAL, SPARK + OUTBOX)
    rows = {"facts": {"read", "write"}, "orders": {"read"}, "ids": {"read"}, "booked": {"read"}, "mirror": {"read"}}
    assert named_topics(actual_project) == {"first": {"write"}, **rows}
    assert event_topics(actual_project) == {"first": {"write"}}
    assert [
        line.split()[line.split().index("--topic") + 1] for line in create_topic_commands(actual_project)
    ] == sorted(("first", *rows))


def test_setting_up_databases_alone_imports_nothing(tmp_path: Path) -> None:
    actual_project = project(tmp_path, STATEMENT)
    (tmp_path / "actions.py").write_text("import not_installed_here", encoding="utf-8")
    assert create_topic_commands(Project(actual_project.settings)) == []


def test_topics_that_only_code_names_are_in_the_settings(tmp_path: Path) -> None:
    actual_project = project(tmp_path, settings='[kafka]\noutbox = "shop"\ntopics = ["mails", "orders"]\n')
    written = {"mails": {"write"}, "orders": {"write"}}
    assert named_topics(actual_project) == event_topics(actual_project) == written
