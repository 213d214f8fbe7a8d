from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from saga_activities.http.settings import http_settings
from saga_spark.reconcile.reconcile_spec import effect_tables
from saga_spark.settings import spark_settings
from sagas.settings import HttpService, KafkaSettings, Settings, SqlConnection, load_settings
from sagas.settings.model import settings_schema
from sagas.settings.table import Table, keys
from tests.unit.settings.reference_page import PAGE, TABLES, complete_file, render


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run `python -m tests.unit.settings.reference_page`"


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.heading)
def test_every_setting_has_a_description(table: type[Table]) -> None:
    assert all(field.description for _, field in keys(table))


def test_the_complete_file_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "saga.toml").write_text(complete_file(), encoding="utf-8")
    monkeypatch.setenv("SHOP_URL", "postgresql://shop@db/shop")
    settings = load_settings(tmp_path, env={})
    assert settings.temporal.model_fields_set
    assert spark_settings(settings).remote == "sc://spark:15002"
    assert [effect.name for effect in effect_tables(settings)] == ["orders"]
    assert isinstance(settings.connection("shop"), SqlConnection)
    crm = settings.connection("crm")
    assert isinstance(crm, HttpService)
    assert http_settings(crm).url == "https://crm.shop"


def test_the_top_level_has_a_table_for_each_name() -> None:
    headers = {table.heading.partition(".")[0] for table in TABLES}
    assert {name for name, _ in keys(Settings)} - headers == {"definitions", "actions", "catalogs", "vars"}


def test_the_schema_for_editors_accepts_the_complete_file_and_no_unknown_key() -> None:
    schema = settings_schema()
    Draft202012Validator.check_schema(schema)
    written = tomllib.loads(complete_file())
    assert list(Draft202012Validator(schema).iter_errors(written)) == []
    for table in (written, written["kafka"], written["temporal"]["tls"], written["serve"]["tokens"]["shop"]):
        table["unknown"] = 1
        [error] = Draft202012Validator(schema).iter_errors(written)
        assert "'unknown'" in error.message
        del table["unknown"]


def test_the_schema_names_no_field_that_the_loader_sets() -> None:
    schema = settings_schema()
    assert set(schema["properties"]) == {name for name, _ in keys(Settings)}
    assert set(schema["$defs"]["KafkaSettings"]["properties"]) == {name for name, _ in keys(KafkaSettings)}
