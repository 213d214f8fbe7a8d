from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from saga_activities.http.settings import http_settings
from saga_spark.reconcile.reconcile_spec import EffectTable, parse_effect_tables
from saga_spark.settings import SparkSettings, spark_settings
from sagas.definition.times import parse_duration
from sagas.settings import KafkaSettings, TemporalSettings, Tls, load_settings
from sagas.settings.tables import CONNECTION_TABLES, EFFECTS, KAFKA, PROJECT, SPARK, TEMPORAL, TLS, SettingsTable
from tests.unit.settings.reference_page import PAGE, TABLES, complete_file, render


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run `python -m tests.unit.settings.reference_page`"


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.header)
def test_every_setting_has_a_description(table: SettingsTable) -> None:
    assert all(setting.meaning and setting.type for setting in table.settings)
    assert len(set(table.names)) == len(table.names)


def test_the_complete_file_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "saga.toml").write_text(complete_file(), encoding="utf-8")
    monkeypatch.setenv("SHOP_URL", "postgresql://shop@db/shop")
    settings = load_settings(tmp_path, env={})
    assert set(settings.temporal.__slots__) >= set(TEMPORAL.names)
    assert spark_settings(settings).remote == "sc://spark:15002"
    assert http_settings(settings.connection("crm")).url == "https://crm.shop"
    assert [effect.name for effect in parse_effect_tables(settings)] == ["orders"]
    for name, connection in settings.connections.items():
        known = set(CONNECTION_TABLES[connection.kind].names)
        assert {"kind", "url", *connection.options} == known, name


@pytest.mark.parametrize(
    ("table", "values"),
    [
        (TEMPORAL, TemporalSettings()),
        (TLS, Tls()),
        (KAFKA, KafkaSettings()),
        (SPARK, SparkSettings(root=Path())),
        (EFFECTS, None),
    ],
    ids=lambda one: getattr(one, "header", None),
)
def test_the_defaults_are_those_of_the_code(table: SettingsTable, values: Any) -> None:
    names = {field.name for field in fields(values or EffectTable)}
    for setting in table.settings:
        if values is None:
            assert setting.name in names | {"saga", "saga_id", "guard_key", "result"}
        elif setting.default and setting.name not in ("namespace", "stage", "python_path"):
            value = getattr(values, setting.name)
            text = setting.default.strip('"')
            written = str(value).lower() if isinstance(value, bool) else str(value)
            assert text in (written, "[]", "{}") or parse_duration(text) == value, setting.name


def test_the_top_level_has_a_table_for_each_name() -> None:
    headers = {table.header.partition(".")[0] for table in TABLES}
    assert set(PROJECT.names) - headers == {"definitions", "actions", "catalogs", "vars", "codec"}
