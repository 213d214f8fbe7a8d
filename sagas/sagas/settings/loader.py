"""Finds and reads the settings.

Precedence: ``SAGA_…__…`` > ``TEMPORAL_*`` > saga.toml > ``.saga/dev.toml`` (services of ``saga dev up`` that are
still running). Command-line flags override all of these in the commands. The Temporal profile has the lowest
precedence and is read where the client is created, so that only commands that connect pay for it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sagas.errors import UsageError, did_you_mean
from sagas.settings.dev_stack import DEV_FILE, read_dev_file, read_toml
from sagas.settings.http import refuse_plain_credentials
from sagas.settings.kafka import parse_kafka
from sagas.settings.model import DEFAULT_TASK_QUEUE, Connection, Settings, TemporalSettings, Tls, spark_ledger
from sagas.settings.secrets import Secret, parse_secret
from sagas.settings.tables import CONNECTION_TABLES, PROJECT, SERVE, TEMPORAL, TLS

CONFIG_NAME = "saga.toml"

Table = dict[str, Any]


def load_settings(
    start_dir: Path | str | None = None,
    config: Path | str | None = None,
    env: Mapping[str, str] = os.environ,
) -> Settings:
    """The settings that apply in ``start_dir`` (default: the current folder).

    ``config`` names the settings file; otherwise saga.toml is searched for upwards. Without a file the settings come
    from the environment alone, and the project folder is ``start_dir``.

    Raises:
        UsageError: a file cannot be read, is not valid TOML, or has an unknown or invalid setting.
    """
    root, config_file = find_project(start_dir, config)
    written = read_toml(config_file) if config_file else {}
    origin = config_file.name if config_file else CONFIG_NAME
    PROJECT.refuse_unknown(written, origin)
    _tables_only(written, origin)
    _apply_environment(written, env)
    SERVE.refuse_unknown(written.get("serve", {}), "[serve]")

    dev = read_dev_file(root)
    databases = [name for name, table in written.get("connections", {}).items() if _is_sql(table)]
    return Settings(
        root=root,
        config_file=config_file,
        definitions=tuple(root / folder for folder in _string_list(written, "definitions", ["definitions"])),
        actions=tuple(_string_list(written, "actions", [])),
        temporal=_temporal(written.get("temporal", {}), dev.get("temporal", {}), env),
        connections={
            name: replace(
                _connection(name, table, dev.get("connections", {}).get(name, {}), root),
                keeps_outputs=name == spark_ledger(written.get("spark", {}), written.get("ledger", {})),
            )
            for name, table in written.get("connections", {}).items()
        },
        vars=written.get("vars", {}),
        ledger=written.get("ledger", {}),
        kafka=parse_kafka(written.get("kafka"), dev.get("kafka", {}), root, databases, written.get("ledger", {})),
        spark=written.get("spark", {}),
        catalogs=_catalogs(written.get("catalogs", {}), dev.get("catalogs", {})),
        embedded_catalogs=tuple(name for name, table in written.get("catalogs", {}).items() if _is_embedded(table)),
        reconcile=written.get("reconcile", {}),
        serve=written.get("serve", {}),
        codec=written.get("codec", {}),
    )


def find_project(start_dir: Path | str | None = None, config: Path | str | None = None) -> tuple[Path, Path | None]:
    """The project folder and its saga.toml (None if there is none).

    Without a saga.toml, a folder in which ``saga dev up`` was run counts as the project.

    Raises:
        UsageError: ``config`` does not exist.
    """
    start = Path(start_dir or Path.cwd()).resolve()
    if config is not None:
        path = (start / Path(config).expanduser()).resolve()
        path = path / CONFIG_NAME if path.is_dir() else path
        if not path.is_file():
            raise UsageError(f"there is no settings file {path}", help="create a project with saga init DIR")
        return path.parent, path
    folders = (start, *start.parents)
    for folder in folders:
        if (folder / CONFIG_NAME).is_file():
            return folder, folder / CONFIG_NAME
    for folder in folders:
        if (folder / DEV_FILE).is_file():
            return folder, None
    return start, None


def _apply_environment(written: Table, env: Mapping[str, str]) -> None:
    """Apply ``SAGA_A__B=value`` as the setting ``a.b``, overriding the file.

    A value that is valid JSON (a number, true, a list, an object) is parsed, unless the setting is a string anyway.
    Names are matched regardless of case, and of ``-`` or ``_``.
    """
    for variable in sorted(env):
        if not variable.startswith("SAGA_") or "__" not in variable:
            continue
        path = variable.removeprefix("SAGA_").split("__")
        table = written
        for position, part in enumerate(path[:-1]):
            key = _matching_key(part, PROJECT.names if position == 0 else table)
            table = table.setdefault(key, {})
            if not isinstance(table, dict):
                raise UsageError(f"{variable} sets a key of {key}, which is not a table")
        if path[0].lower() not in PROJECT.names:
            raise UsageError(
                f"{variable}: unknown setting {path[0].lower()}{did_you_mean(path[0].lower(), PROJECT.names)}"
            )
        key = _matching_key(path[-1], table)
        is_text = key == "url" or (path[0].lower() == "temporal" and key != "tls")
        is_text = is_text or (path[0].lower() == "kafka" and len(path) > 2)  # a password may look like a number
        table[key] = env[variable] if is_text else _parsed(env[variable])


def _matching_key(part: str, known: Mapping[str, Any] | tuple[str, ...]) -> str:
    plain = part.lower().replace("-", "_")
    return next((key for key in known if key.lower().replace("-", "_") == plain), plain)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _temporal(written: Table, dev: Table, env: Mapping[str, str]) -> TemporalSettings:
    TEMPORAL.refuse_unknown(written, "[temporal]")
    for key in ("address", "namespace", "task_queue", "profile", "web_ui"):
        if key in written and not (isinstance(written[key], str) and written[key]):
            raise UsageError(f"temporal.{key} must be a string")

    def first(key: str, variable: str) -> Any:
        # SAGA_TEMPORAL__… overrides TEMPORAL_…, which overrides the file.
        if env.get(f"SAGA_TEMPORAL__{key.upper()}") is None and env.get(variable):
            return env[variable]
        return written.get(key)

    address = first("address", "TEMPORAL_ADDRESS")
    embedded = address is None and "address" in dev
    api_key = first("api_key", "TEMPORAL_API_KEY")
    return TemporalSettings(
        address=address or dev.get("address"),
        namespace=first("namespace", "TEMPORAL_NAMESPACE") or (dev.get("namespace") if embedded else None),
        task_queue=written.get("task_queue", DEFAULT_TASK_QUEUE),
        api_key=parse_secret(api_key, "temporal.api_key") if isinstance(api_key, Mapping) else api_key,
        tls=_tls(written.get("tls")),
        profile=first("profile", "TEMPORAL_PROFILE"),
        # The embedded UI shows only the embedded server, wherever that server's address was set.
        web_ui=written.get("web_ui")
        or (dev.get("web_ui") if dev.get("address") in (None, address) or embedded else None),
        embedded=embedded,
    )


def _tls(written: Any) -> bool | Tls | None:
    if written is None or isinstance(written, bool):
        return written
    if not isinstance(written, dict):
        raise UsageError("temporal.tls must be true, false, or a table with server_name, ca, cert and key")
    TLS.refuse_unknown(written, "[temporal.tls]")
    return Tls(**written)


def _connection(name: str, table: Any, dev: Table, root: Path) -> Connection:
    if not isinstance(table, dict):
        raise UsageError(f"connections.{name} must be a table: [connections.{name}]")
    kind = table.get("kind", "sql")
    if kind not in CONNECTION_TABLES:
        raise UsageError(f"connections.{name}.kind must be sql or http, not {kind}")
    CONNECTION_TABLES[kind].refuse_unknown(table, f"[connections.{name}]")
    written: str | Secret | None = None
    match table.get("url"):
        case None:
            written = dev.get("url") if kind == "sql" else None
        case str() as text:
            written = text
        case Mapping() as reference:
            written = parse_secret(reference, f"connections.{name}.url")
        case _:
            raise UsageError(f"connections.{name}.url must be a string")
    options = {key: value for key, value in table.items() if key not in ("kind", "url")}
    if kind == "http" and isinstance(written, str):
        refuse_plain_credentials(name, written, options)
    if not isinstance(options.get("schema", ""), str):
        raise UsageError(f"connections.{name}.schema must be the name of a SQL file")
    return Connection(name, kind, root, written, options, embedded=kind == "sql" and "url" not in table)


def _is_sql(connection: Any) -> bool:
    return isinstance(connection, dict) and connection.get("kind", "sql") == "sql"


def _catalogs(written: Table, dev: Table) -> Table:
    """The tables as written; those on the embedded PostgreSQL are completed with what ``saga dev up`` wrote."""
    for name, table in written.items():
        if not isinstance(table, dict):
            raise UsageError(f"catalogs.{name} must be a table: [catalogs.{name}]")
    return {name: {**dev.get(name, {}), **table} if _is_embedded(table) else table for name, table in written.items()}


def _is_embedded(catalog: Table) -> bool:
    return catalog.get("type", "sql") == "sql" and not {"uri", "py-catalog-impl"} & catalog.keys()


def _string_list(written: Table, key: str, default: list[str]) -> list[str]:
    value = written.get(key, default)
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise UsageError(f'{key} must be a list of strings, such as {key} = ["{key}"]')
    return value


def _tables_only(written: Table, origin: str) -> None:
    for key in PROJECT.names[2:]:
        if not isinstance(written.get(key, {}), dict):
            raise UsageError(f"{origin}: {key} must be a table: [{key}]")
