"""The settings of a project, as immutable values: saga.toml, with a model for each table.

Secrets stay references (``{env = "X"}``, ``{file = "…"}``) until their value is needed, so that a command that needs
no secret works where the secret is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

from sagas.errors import UsageError, did_you_mean
from sagas.settings.addresses import check_catalog_addresses
from sagas.settings.codec import CodecSettings
from sagas.settings.connections import HttpService, SqlConnection, read_connection
from sagas.settings.enqueue import EnqueueSettings
from sagas.settings.forms import TABLE, TEXTS, Texts
from sagas.settings.kafka import KafkaSettings
from sagas.settings.ledger import LedgerSettings, LockSettings
from sagas.settings.reconcile import ReconcileSettings
from sagas.settings.serve import ServeSettings
from sagas.settings.signing_keys import SigningKeys, load_keys
from sagas.settings.spark import SparkTable
from sagas.settings.table import Table, named_tables, setting
from sagas.settings.temporal import TemporalSettings
from sagas.settings.worker import WorkerSettings
from sagas.settings.wrong_setting import WrongSetting
from sagas.text.json_values import json_problem


def _read_catalog(catalog: Mapping[str, Any]) -> dict[str, Any]:
    check_catalog_addresses(catalog)
    return {key: str(value) if isinstance(value, Decimal) else value for key, value in catalog.items()}


def _read_vars(written: Mapping[str, Any]) -> Mapping[str, Any]:
    _check_json(written, "")
    return written


def _check_json(value: Any, setting: str, depth: int = 20) -> None:
    """Raises WrongSetting for a value that expressions cannot have: a date, infinity, or more than ``depth`` levels."""
    match value:
        case Mapping() | list() if depth == 0:
            raise WrongSetting(setting, "is nested too deeply")
        case Mapping():
            for key, item in value.items():
                _check_json(item, f"{setting}.{key}" if setting else key, depth - 1)
        case list():
            for item in value:
                _check_json(item, setting, depth - 1)
        case str() | bool() | None:
            pass
        case int() | Decimal() if json_problem(value) is None:
            pass
        case _:
            raise WrongSetting(setting, "is not a JSON value; write it as a string")


def settings_schema() -> dict[str, Any]:
    """The JSON Schema of saga.toml."""
    from sagas.definition.parser.language import DIALECT

    return {"$schema": DIALECT, "title": "saga.toml", **Settings.model_json_schema()}


class Settings(Table):
    """All settings of a project. ``root`` is the project folder, or the current folder without a project.

    ``embedded_catalogs`` names the catalogs on the embedded PostgreSQL.
    """

    summary = "Relative paths in saga.toml are relative to its folder."

    root: Path = Path()
    config_file: Path | None = None
    embedded_catalogs: tuple[str, ...] = ()
    definition_folders: Annotated[tuple[Path, ...], TEXTS] = setting(
        (Path("definitions"),),
        "folders with definitions, searched with their subfolders",
        ["definitions"],
        alias="definitions",
    )
    actions: Texts = setting(
        (),
        "Python modules with actions, consumers and bridges: dotted names, or files such as `./actions.py`",
        ["shop.actions", "./more_actions.py"],
    )
    temporal: TemporalSettings = setting(TemporalSettings(), "the Temporal server")
    worker: WorkerSettings = setting(WorkerSettings(), "which definitions a worker runs")
    connections: Annotated[
        Mapping[str, SqlConnection | HttpService], named_tables(read_connection, SqlConnection, HttpService)
    ] = setting({}, "the participants: databases and HTTP services")
    ledger: LedgerSettings = setting(LedgerSettings(), "the database of the engine's own rows")
    locks: LockSettings = setting(LockSettings(), "the database of semantic locks")
    kafka: KafkaSettings = setting(KafkaSettings(), "Kafka; an empty table is enough to use the embedded broker")
    spark: SparkTable = setting(SparkTable(), "Spark steps")
    catalogs: Annotated[Mapping[str, Mapping[str, Any]], named_tables(_read_catalog)] = setting(
        {}, "the Iceberg catalogs of Spark steps", repr=False
    )
    reconcile: ReconcileSettings = setting(ReconcileSettings(), "which rows of your tables are effects of sagas")
    vars: Annotated[Mapping[str, Any], replace(TABLE, read=_read_vars)] = setting(
        {}, "values for expressions", repr=False
    )
    enqueue: EnqueueSettings = setting(EnqueueSettings(), "starts and signals from transactions of applications")
    serve: ServeSettings = setting(ServeSettings(), "`saga serve`")
    codec: CodecSettings = setting(CodecSettings(), "payload encryption")

    @property
    def definitions(self) -> tuple[Path, ...]:
        """The folders with definitions."""
        return tuple(self.root / folder for folder in self.definition_folders)

    @property
    def spark_ledger(self) -> str | None:
        """The connection that holds the guard and fence rows of Spark steps: ``[spark] ledger``, else the ledger."""
        return self.spark.ledger or self.ledger.connection

    @property
    def lock_connection(self) -> str | None:
        """The connection that holds the semantic locks: ``[locks] connection``, else the ledger."""
        return self.locks.connection or self.ledger.connection

    @property
    def relay_delivers(self) -> bool:
        """True if the relay delivers enqueued rows, and so has work also without Kafka."""
        return bool(self.enqueue.connections) and self.enqueue.delivered_by == "relay"

    @property
    def dev_folder(self) -> Path:
        return self.root / ".saga"

    def signing_keys(self, *, create: bool = True) -> SigningKeys:
        """The keys that sign definitions; ``create``: make the project's key file if there is none yet.

        Raises:
            UsageError: the setting cannot be resolved, or a key is too short.
        """
        return load_keys(self.worker.definition_key, self.root, create=create)

    def connection(self, name: str) -> SqlConnection | HttpService:
        """The connection with this name.

        Raises:
            UsageError: it does not exist.
        """
        connection = self.connections.get(name)
        if connection is None:
            raise UsageError(
                f"there is no connection {name} in the settings{did_you_mean(name, self.connections)}",
                help=f"add [connections.{name}] to saga.toml",
            )
        return connection

    def sql_connection(self, name: str) -> SqlConnection:
        """The database with this name. Raises UsageError if it does not exist, or is an HTTP service."""
        connection = self.connection(name)
        if not isinstance(connection, SqlConnection):
            raise UsageError(f"the connection {name} is not a database", help=f'kind = "sql" in [connections.{name}]')
        return connection

    def http_services(self) -> list[HttpService]:
        return [connection for connection in self.connections.values() if isinstance(connection, HttpService)]

    def sql_connections(self) -> list[SqlConnection]:
        return [connection for connection in self.connections.values() if isinstance(connection, SqlConnection)]
