"""No setting is accepted without an effect: each key, from the file and from its variable, reaches what uses it."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from saga_activities.connections import DatabaseConnections
from saga_activities.http.settings import http_settings
from saga_activities.kafka.config import consumer_config, producer_config
from saga_spark.reconcile.reconcile_spec import effect_tables
from saga_spark.settings import spark_settings
from sagas.errors import UsageError
from sagas.project import Project
from sagas.settings import KafkaSettings, Secret, Settings, load_settings
from sagas.settings.kafka import ENGINE_PROPERTIES, REQUIRED_VALUES
from sagas.settings.reconcile import EffectTable
from sagas.settings.table import Table, example_of, form_of, keys
from tests.unit.settings.reference_page import TABLES

ROOT = Path(__file__).resolve().parents[3]
ROOMS = ("sagas/sagas", "activities/saga_activities", "spark_steps/saga_spark", "workers/saga_workers", "cli/saga_cli")

ANOTHER_VALUE = {
    "definitions": '["elsewhere"]',
    "actions": '["json"]',
    "connections.shop.url": '"sqlite:///another.db"',
    "codec.key": f'"{"ab" * 32}"',
    "codec.outbox": "true",
    "dead_letters": "true",
    "name": '"bills"',
    "table": '"bills"',
    "step": '"bill"',
    "guard_key": '"bill_key"',
    "namespace": '"shop"',
    "api_key": '"k"',
    "task_queue": '"others"',
    "tls": "true",
    "accept": '"any"',
    "schedules": "true",
    "definition_key": '"k"',
    "schema": '"tables.sql"',
    "pool_size": "7",
    "prepared_warn_after": '"1m"',
    "isolation": '"SERIALIZABLE"',
    "trusted_roles": '["migrator"]',
    "idempotency": '"X-Key"',
    "idempotent": "false",
    "accept_replies_without_token": "true",
    "allow_plain_http": "true",
    "prefix": '"shop"',
    "transaction_timeout": '"45s"',
    "batch": "50",
    "max_message_bytes": "1000",
    "max_cached_bytes": "1000",
    "max_cached_workflows": "7",
    "max_signals": "7",
    "shards": "2",
    "retention": '"1d"',
    "client": '{ "linger.ms" = "3" }',
    "master": '"local[1]"',
    "memory": '"2g"',
    "recycle_after": "5",
    "python_path": '["jobs"]',
    "work": '"scratch"',
    "outbox": '"other"',
    "ledger": '"other"',
    "connection": '"other"',
    "where": '"1 = 1"',
    "saga_id": '"saga"',
    "tokens": '{ shop = { secret = { env = "SHOP_TOKEN" } } }',
    "connections": '["other"]',
    "delivered_by": '"worker"',
    "starts_per_second": "7",
    "max_body_bytes": "1000",
    "many": "true",
    "holds": "true",
}
"""Values that are not the default, where the example of the row is the default or is missing."""


def value_of(table: type[Table], key: str) -> str:
    another = ANOTHER_VALUE.get(f"{table.heading}.{key}") or ANOTHER_VALUE.get(key)
    return another or example_of(dict(keys(table))[key])


def rows(*, without: tuple[type[Table], ...] = ()) -> list[Any]:
    """All keys, except ``kind``, which decides what the other keys of its connection mean."""
    return [
        pytest.param(table, key, id=f"{table.heading or 'top'}-{key}")
        for table in TABLES
        for key, field in keys(table)
        if not (key == "kind" or (table is Settings and form_of(field).type == "table"))
        if table not in without
    ]


def file_with(table: type[Table], key: str | None) -> str:
    """A project in which the key can have an effect: with that key, or without."""
    header, written = table.heading, []
    value = "" if key is None else f"{key} = {value_of(table, key)}\n"
    if header == "":
        written.append(value)
    written.append('[connections.other]\nurl = "sqlite:///other.db"\n')
    written.append(f"[connections.shop]\n{value if header == 'connections.shop' else ''}")
    if "url" not in written[-1]:
        written[-1] += 'url = "sqlite:///shop.db"\n'
    http = value if header == "connections.crm" else ""
    written.append(
        "[connections.crm]\n"
        + "".join(
            f"{name} = {text}\n"
            for name, text in (("kind", '"http"'), ("url", '"https://a"'))
            if not http.startswith(f"{name} =")
        )
        + http
    )
    if header == "reconcile.effects":
        needed = {"connection": '"shop"', "table": '"orders"', "key": '"id"', "step": '"place"', "guard_key": '"key"'}
        if key in ("saga_id", "result"):
            del needed["guard_key"]
        needed.pop(key or "", None)
        written.append(
            "[[reconcile.effects]]\n" + "".join(f"{name} = {text}\n" for name, text in needed.items()) + value
        )
    elif header == "serve.tokens.shop" and key != "secret":
        written.append(f'[{header}]\nsecret = {{env = "ANOTHER_TOKEN"}}\n{value}')
    elif header == "enqueue" and key != "connections":
        written.append(f'[{header}]\nconnections = ["shop"]\n{value}')
    elif header == "worker" and key != "accept":
        written.append(f'[{header}]\naccept = "project"\n{value}')
    elif header and not header.startswith("connections"):
        written.append(f"[{header}]\n{value}")
    if header.startswith("connections"):
        written.append('[ledger]\nconnection = "other"\n')
    return "\n".join(written)


def observed(settings: Settings) -> Mapping[str, Any]:
    """The settings as the parts that use them see them."""
    databases = DatabaseConnections(settings.sql_connections())
    guards = [databases.guard(connection.name) for connection in settings.sql_connections()]
    return {
        "project": (settings.definitions, settings.actions, settings.serve),
        "checks": Project(settings).context.connections,
        "temporal": settings.temporal,
        "worker": settings.worker,
        "codec": settings.codec,
        "schemas": [connection.schema_file for connection in settings.sql_connections()],
        "databases": [
            (guard.engine.url, vars(guard.engine.pool)["_pool"].maxsize, guard.isolation) for guard in guards
        ],
        "roles": [connection.trusted_roles for connection in settings.sql_connections()],
        "http": [http_settings(service) for service in settings.http_services()],
        "plain": [service.allow_plain_http for service in settings.http_services()],
        "prepared": [connection.prepared_warn_after for connection in settings.sql_connections()],
        "circuit breakers": [connection.circuit_breaker for connection in settings.connections.values()],
        "ledger": settings.ledger,
        "enqueue": settings.enqueue,
        "kafka": settings.kafka,
        "spark": spark_settings(settings),
        "effects": effect_tables(settings),
        "locks": [connection.name for connection in settings.sql_connections() if connection.keeps_locks],
    }


@pytest.mark.parametrize(("table", "key"), rows())
def test_every_key_of_the_file_has_an_effect(tmp_path: Path, table: type[Table], key: str) -> None:
    views = []
    for written_key in (None, key):
        (tmp_path / "saga.toml").write_text(file_with(table, written_key), encoding="utf-8")
        views.append(observed(load_settings(tmp_path, env={})))
    assert views[0] != views[1]


@pytest.mark.parametrize(("table", "key"), rows(without=(Settings, EffectTable)))
def test_every_variable_has_the_effect_of_its_key(tmp_path: Path, table: type[Table], key: str) -> None:
    (tmp_path / "saga.toml").write_text(file_with(table, key), encoding="utf-8")
    from_file = observed(load_settings(tmp_path, env={}))
    (tmp_path / "saga.toml").write_text(file_with(table, None), encoding="utf-8")
    value = tomllib.loads(f"value = {value_of(table, key)}")["value"]
    variable = "SAGA_" + "__".join([*table.heading.split("."), key]).upper()
    text = value if isinstance(value, str) else json.dumps(value)
    assert observed(load_settings(tmp_path, env={variable: text})) == from_file


def names_read(file: Path) -> set[str]:
    """Attributes in the code of a file, and string constants where no settings are declared."""
    names = set()
    parts = file.relative_to(ROOT).parts
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            names.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "settings" not in parts:
            names.add(node.value)
    return names


def test_every_key_has_a_reader() -> None:
    unread = {field for table in TABLES for field, info in table.model_fields.items() if info.description is not None}
    assert len(unread) > 50
    for file in (file for room in ROOMS for file in sorted((ROOT / room).rglob("*.py"))):
        # Only a file in which the word of a field is behind a point or a quotation mark can read it.
        words = re.findall(r"""[."'](\w+)""", file.read_text(encoding="utf-8"))
        if not unread.isdisjoint(words):
            unread -= names_read(file)
    assert unread == set()


def test_properties_of_kafka_that_the_engine_sets_cannot_be_set(tmp_path: Path) -> None:
    kafka = KafkaSettings(root=tmp_path, bootstrap_servers="a:1")
    own = {**producer_config(kafka, transactional_id="x"), **consumer_config(kafka, "g")}
    # The relay derives these from how long a commit may take; consumers use the written ones.
    own_of_the_relay = {"retry.backoff.ms", "retry.backoff.max.ms"}
    free = {"partitioner", "logger", "compression.type", "linger.ms", "socket.timeout.ms"}
    assert set(own) - own_of_the_relay - free <= {*ENGINE_PROPERTIES, *REQUIRED_VALUES}


@pytest.mark.parametrize(
    ("text", "env", "message"),
    [
        ("[spark]\nmster = 'x'", {}, r"\[spark\]: unknown setting mster; did you mean master\?"),
        ("[ledger]\nconection = 'x'", {}, r"\[ledger\]: unknown setting conection"),
        ("[ledger]\nconnection = 'shp'", {}, "ledger.connection names shp, which is not a SQL connection"),
        ("[spark]\nledger = 'crm'", {}, "spark.ledger names crm, which is not a SQL connection"),
        ("[[reconcile.effects]]\ntabel = 'x'", {}, "unknown setting tabel; did you mean table"),
        (
            "".join(
                f"[[reconcile.effects]]\nconnection = '{name}'\ntable = 'orders'\nkey = 'id'\nsaga_id = 'saga'\n"
                for name in ("shop", "depot")
            ),
            {},
            r"\[\[reconcile.effects\]\]: the name orders occurs twice; give each table a `name` of its own",
        ),
        ("[connections.x]\nkind = 'http'\nsettle = 'long'", {}, "connections.x.settle: `long` is not a duration"),
        ("[connections.x]\nkind = 'http'\nsettle = 30", {}, "connections.x.settle must be a string such as 30s"),
        (
            "[connections.x]\nkind = 'http'\nidempotency = false",
            {},
            "connections.x.idempotency must be a string or a table",
        ),
        ("[connections.x]\nkind = 'http'\nidempotency.form = 'uuid'", {}, "unknown setting form; did you mean format"),
        (
            "[connections.x]\nkind = 'http'\nidempotency.format = 'md5'",
            {},
            'format must be "key" or "uuid" or "sha256"',
        ),
        ("[connections.x]\nkind = 'http'\nrejected = [999]", {}, r"x.rejected contains 999; write a status \(409\)"),
        ("[connections.x]\nkind = 'http'\nidempotent = 'no'", {}, "connections.x.idempotent must be true or false"),
        ("[kafka.client]\nclient.id = 'x'", {}, "client.id cannot be set"),
        ("", {"SAGA_SPARK__CONF__SPARK_UI_PORT": "1"}, "SAGA_SPARK__CONF__SPARK_UI_PORT does not tell the name"),
        ("", {"SAGA_CATALOGS__LAKE__S3_ENDPOINT": "x"}, "SAGA_CATALOGS__LAKE__S3_ENDPOINT does not tell the name"),
        ("vars = {day = 2026-01-01}", {}, "vars.day is not a JSON value; write it as a string"),
        ("vars = {x = [nan]}", {}, "vars.x is not a JSON value"),
    ],
)
def test_what_would_have_no_effect_is_refused(tmp_path: Path, text: str, env: dict[str, str], message: str) -> None:
    (tmp_path / "saga.toml").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        load_settings(tmp_path, env=env)


def test_properties_with_dots_reach_spark_and_pyiceberg(tmp_path: Path) -> None:
    text = '[spark.conf]\nspark.ui.port = 4040\n[catalogs.lake]\ntype = "rest"\nuri = "http://x"\n"s3.endpoint" = "a"\n'
    (tmp_path / "saga.toml").write_text(text, encoding="utf-8")
    env = {
        "SAGA_CATALOGS__LAKE__S3_ENDPOINT": "b",
        "SAGA_CATALOGS__LAKE__TOKEN": "007",
        "SAGA_SPARK__PYTHON_PATH": "a, b",
    }
    spark = spark_settings(load_settings(tmp_path, env=env))
    assert spark.conf == {"spark.ui.port": "4040"}
    assert spark.catalogs["lake"]["s3.endpoint"] == "b"
    assert spark.catalogs["lake"]["token"] == "007"
    assert spark.python_path == (f"{tmp_path}/a", f"{tmp_path}/b")


def test_a_table_of_the_environment_is_merged_with_that_of_the_file(tmp_path: Path) -> None:
    text = """
    vars = {limits = {day = 5, week = 9}}
    [spark.conf]
    spark.ui.port = 4040
    "spark.sql.shuffle.partitions" = 8
    [connections.crm]
    kind = "http"
    url = "https://crm.example"
    auth = {bearer = {file = "token"}}
    """
    (tmp_path / "saga.toml").write_text(text, encoding="utf-8")
    env = {
        "SAGA_SPARK__CONF": '{"spark.ui.port": 4050, "spark.eventLog.enabled": true}',
        "SAGA_VARS__LIMITS": '{"day": 6}',
        "SAGA_CONNECTIONS__CRM__AUTH": '{"bearer": {"env": "TOKEN"}}',
    }
    settings = load_settings(tmp_path, env=env)
    assert spark_settings(settings).conf == {
        "spark.ui.port": "4050",
        "spark.sql.shuffle.partitions": "8",
        "spark.eventLog.enabled": "true",
    }
    assert settings.vars == {"limits": {"day": 6, "week": 9}}
    [crm] = settings.http_services()
    assert crm.auth is not None
    assert crm.auth.bearer == Secret("env", "TOKEN")


def test_a_variable_of_one_key_wins_over_that_of_its_table(tmp_path: Path) -> None:
    env = {"SAGA_VARS__LIMITS": '{"a": 1, "b": 1}', "SAGA_VARS__LIMITS__A": "2"}
    assert load_settings(tmp_path, env=env).vars == {"limits": {"a": 2, "b": 1}}


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ('"ui.port" = "1"', "ui.port is not a property of Spark"),
        ('"spark.sql.session.timeZone" = "CET"', "must stay UTC: staged files rely on it"),
        ('"spark.x" = [1]', "must be a string, a number"),
    ],
)
def test_spark_properties_without_effect_are_refused(tmp_path: Path, conf: str, message: str) -> None:
    (tmp_path / "saga.toml").write_text(f"[spark.conf]\n{conf}", encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        spark_settings(load_settings(tmp_path, env={}))


@pytest.mark.parametrize(
    ("written", "honoured"),
    [("", True), ('idempotency = "X-Key"', True), ('idempotency = "none"', False), ('idempotency = "None"', False)],
)
def test_no_idempotency_header_in_any_case_means_that_no_key_is_honoured(
    tmp_path: Path, written: str, honoured: bool
) -> None:
    (tmp_path / "definitions").mkdir()
    (tmp_path / "saga.toml").write_text(f'[connections.crm]\nkind = "http"\nurl = "https://a"\n{written}')
    definition = "saga: s\nsteps:\n  - id: a\n    uses: http\n    with: {connection: crm, method: POST, path: /x}\n"
    (tmp_path / "definitions" / "s.saga.yaml").write_text(definition)
    settings = load_settings(tmp_path, env={})
    warnings = {diagnostic.code for diagnostic in Project(settings).diagnostics}
    assert ("SAGA221" in warnings) == (not honoured), warnings
    [crm] = settings.http_services()
    assert (http_settings(crm).key_header is not None) == honoured
