"""Finds and reads the settings.

Precedence: ``SAGA_…__…`` > ``TEMPORAL_*`` > saga.toml > ``.saga/dev.toml`` (services of ``saga dev up`` that are
still running). Command-line flags override all of these in the commands. The Temporal profile has the lowest
precedence and is read where the client is created, so that only commands that connect pay for it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from sagas.errors import UsageError, did_you_mean
from sagas.settings.addresses import check_catalog_addresses, require_host_port, require_http_url
from sagas.settings.dev_stack import DEV_FILE, MAX_BYTES, read_dev_file, read_toml
from sagas.settings.http import refuse_plain_credentials
from sagas.settings.kafka import parse_kafka
from sagas.settings.masking import remember_secret, remember_settings, without_credentials
from sagas.settings.model import (
    DEFAULT_TASK_QUEUE,
    Connection,
    Settings,
    TemporalSettings,
    Tls,
    WorkerSettings,
    lock_connection,
    spark_ledger,
)
from sagas.settings.secrets import parse_secret
from sagas.settings.setting import TEXT_TYPES, check_json
from sagas.settings.tables import (
    CONNECTION_TABLES,
    EFFECTS,
    KAFKA,
    LEDGER,
    LOCKS,
    PROJECT,
    RECONCILE,
    SERVE,
    SERVE_TOKEN,
    SPARK,
    TEMPORAL,
    TLS,
    WORKER,
    find_setting,
)
from sagas.settings.trust import require_own
from sagas.settings.wrong_setting import WrongSetting, line_of
from sagas.text.bounded_files import read_bounded, short_path
from sagas.text.exact_json import decode_json

CONFIG_NAME = "saga.toml"

_LONGEST_MESSAGE = 1_000
"""A message names what is written, which may be a megabyte."""

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
    try:
        return _load(start_dir, config, env)
    except UsageError as error:
        if len(error.message) <= _LONGEST_MESSAGE:
            raise
        raise UsageError(f"{error.message[:_LONGEST_MESSAGE]}…", help=error.help) from None


def _load(start_dir: Path | str | None, config: Path | str | None, env: Mapping[str, str]) -> Settings:
    root, config_file = find_project(start_dir, config)
    require_own(config_file or root / DEV_FILE, env)
    written = read_toml(config_file) if config_file else {}
    origin = config_file.name if config_file else CONFIG_NAME
    variables = _apply_environment(written, env)
    remember_settings(written)  # before a message quotes a value
    try:
        return _read(root, config_file, written, origin, env)
    except WrongSetting as error:
        place = variables.get(error.setting)
        if place is None and config_file is not None and error.setting not in env:  # as TEMPORAL_ADDRESS is
            place = _place(config_file, error.setting)
        raise UsageError(f"{place}: {error.message}" if place else error.message, help=error.help) from None


def _place(file: Path, setting: str) -> str:
    """The name of the file, and the line if it is clear."""
    try:
        line = line_of(read_bounded(file, MAX_BYTES).decode(), setting)
    except (OSError, ValueError, UsageError):  # it has been changed since it was read
        line = None
    return file.name if line is None else f"{file.name}:{line}"


def _read(root: Path, config_file: Path | None, written: Table, origin: str, env: Mapping[str, str]) -> Settings:
    """The settings in ``written``. Raises UsageError."""
    _check(written, origin)
    dev = read_dev_file(root)
    remember_settings(dev)
    return Settings(
        root=root,
        config_file=config_file,
        definitions=tuple(root / folder for folder in written.get("definitions", ["definitions"])),
        actions=tuple(written.get("actions", [])),
        temporal=_temporal(written.get("temporal", {}), dev.get("temporal", {}), env),
        worker=_worker(written.get("worker", {})),
        connections={
            name: replace(
                _connection(name, table, dev.get("connections", {}).get(name, {}), root),
                keeps_outputs=name == spark_ledger(written.get("spark", {}), written.get("ledger", {})),
                keeps_ledger=name == written.get("ledger", {}).get("connection"),
                keeps_locks=name == lock_connection(written.get("locks", {}), written.get("ledger", {})),
            )
            for name, table in written.get("connections", {}).items()
        },
        vars=written.get("vars", {}),
        ledger=written.get("ledger", {}),
        locks=written.get("locks", {}),
        kafka=parse_kafka(written.get("kafka"), dev.get("kafka", {}), root, written.get("ledger", {})),
        spark=written.get("spark", {}),
        catalogs=_catalogs(written.get("catalogs", {}), dev.get("catalogs", {})),
        embedded_catalogs=tuple(name for name, table in written.get("catalogs", {}).items() if _is_embedded(table)),
        reconcile=written.get("reconcile", {}),
        serve=written.get("serve", {}),
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
        path = path / CONFIG_NAME if os.path.isdir(path) and path.name != CONFIG_NAME else path
        if not os.path.lexists(path):
            raise UsageError(
                f"there is no settings file {short_path(path)}", help="create a project with saga init DIR"
            )
        return path.parent, path  # reading it says what else is wrong with it
    folders = (start, *start.parents)
    for folder in folders:
        if os.path.lexists(folder / CONFIG_NAME):
            return folder, folder / CONFIG_NAME
    for folder in folders:
        if (folder / DEV_FILE).is_file():
            return folder, None
    return start, None


def _apply_environment(written: Table, env: Mapping[str, str]) -> dict[str, str]:
    """Apply ``SAGA_A__B=value`` as the setting ``a.b``, overriding the file; return the variable of each setting.

    Names are matched regardless of case, and of ``-``, ``.`` or ``_``. An empty variable counts as not set, except
    among ``vars``.
    """
    variables: dict[str, str] = {}
    for variable in sorted(env):
        if not variable.startswith("SAGA_") or "__" not in variable:
            continue
        parts = variable.removeprefix("SAGA_").split("__")
        table, path = written, []
        for position, part in enumerate(parts):
            path.append(_matching_key(part, PROJECT.names if position == 0 else table))
            if position == 0 and path[0] not in PROJECT.names:
                raise UsageError(f"{variable}: unknown setting {path[0]}{did_you_mean(path[0], PROJECT.names)}")
            if position < len(parts) - 1:
                table = table.setdefault(path[-1], {})
                if not isinstance(table, dict):
                    raise UsageError(f"{variable} sets a key of {path[-1]}, which is not a table")
        if not all(path):
            raise UsageError(f"{variable}: a name is missing before or after __")
        if env[variable] or path[0] == "vars":
            _refuse_unclear_name(variable, path, table)
            table[path[-1]] = _merged(table.get(path[-1]), _value(variable, path, env[variable]))
            variables[".".join(path)] = variable
    return variables


def _merged(written: Any, value: Any) -> Any:
    """``value``, with the keys of the table ``written`` that it does not have, at every level. Its own keys come last:
    of two spellings of a property (with dots, as nested tables) the last one counts. References to secrets are never
    mixed."""
    if not (isinstance(written, dict) and isinstance(value, dict)) or _is_reference(written) or _is_reference(value):
        return value
    kept = {key: item for key, item in written.items() if key not in value}
    return kept | {key: _merged(written.get(key), item) for key, item in value.items()}


def _is_reference(table: Table) -> bool:
    return len(table) == 1 and not {"env", "file"}.isdisjoint(table)


def _matching_key(part: str, known: Mapping[str, Any] | tuple[str, ...]) -> str:
    plain = _plain(part)
    return next((key for key in known if _plain(key) == plain), plain)


def _plain(name: str) -> str:
    return name.lower().replace("-", "_").replace(".", "_")


_CATALOG_PROPERTIES = ("init_catalog_tables", "pool_pre_ping")
"""The properties of pyiceberg whose names have an underscore; all others have dots and hyphens instead."""


def _refuse_unclear_name(variable: str, path: list[str], table: Table) -> None:
    """A property of Spark or pyiceberg has dots and capitals, which a variable cannot spell: the file must name it."""
    is_property = path[:2] == ["spark", "conf"] or path[0] == "catalogs"
    if is_property and len(path) > 2 and "_" in path[-1] and path[-1] not in (*table, *_CATALOG_PROPERTIES):
        raise UsageError(
            f"{variable} does not tell the name of the property; write it in saga.toml too, with its dots and capitals"
        )


def _value(variable: str, path: list[str], text: str) -> Any:
    """A setting with a row has the type of the row; below it are texts, among ``vars`` any JSON."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{variable} is not UTF-8 text") from None
    setting = find_setting(path)
    if setting is None:
        parsed = _parsed(text) if path[0] != "kafka" else text  # a password may look like a number
        return parsed if path[0] == "vars" or isinstance(parsed, dict) else text
    if setting.type in TEXT_TYPES:
        return text
    parsed = _parsed(text)
    if setting.type == "list of strings" and not isinstance(parsed, list):
        return [item.strip() for item in text.split(",") if item.strip()]
    return parsed


def _parsed(text: str) -> Any:
    try:
        return decode_json(text)
    except (ValueError, RecursionError):
        return text


def _check(written: Table, origin: str) -> None:
    """Raises UsageError for a key or a type that has no row in the tables."""
    PROJECT.check(written, origin)
    TEMPORAL.check(written.get("temporal", {}), "[temporal]")
    if isinstance(tls := written.get("temporal", {}).get("tls", {}), dict):
        TLS.check(tls, "[temporal.tls]")
    WORKER.check(written.get("worker", {}), "[worker]")
    LEDGER.check(written.get("ledger", {}), "[ledger]")
    LOCKS.check(written.get("locks", {}), "[locks]")
    KAFKA.check(written.get("kafka", {}), "[kafka]")
    SPARK.check(written.get("spark", {}), "[spark]")
    RECONCILE.check(written.get("reconcile", {}), "[reconcile]")
    for number, effects in enumerate(written.get("reconcile", {}).get("effects", []), 1):
        EFFECTS.check(effects, f"[[reconcile.effects]] {effects.get('name') or effects.get('table') or number}")
    SERVE.check(written.get("serve", {}), "[serve]")
    for name, token in written.get("serve", {}).get("tokens", {}).items():
        SERVE_TOKEN.check(token, f"[serve.tokens.{name}]")
    for name, catalog in written.get("catalogs", {}).items():
        if not isinstance(catalog, dict):
            raise UsageError(f"catalogs.{name} must be a table: [catalogs.{name}]")
        check_catalog_addresses(f"catalogs.{name}", catalog)
    check_json(written.get("vars", {}), "vars")
    databases = [name for name, table in written.get("connections", {}).items() if _is_sql(table)]
    for table, key in (("ledger", "connection"), ("locks", "connection"), ("kafka", "outbox"), ("spark", "ledger")):
        name = written.get(table, {}).get(key)
        if name is not None and name not in databases:
            raise UsageError(
                f"{table}.{key} names {name}, which is not a SQL connection{did_you_mean(name, tuple(databases))}",
                help=f"add [connections.{name}] to saga.toml",
            )


def _temporal(written: Table, dev: Table, env: Mapping[str, str]) -> TemporalSettings:
    def first(key: str, variable: str) -> Any:
        # SAGA_TEMPORAL__… overrides TEMPORAL_…, which overrides the file.
        if env.get(f"SAGA_TEMPORAL__{key.upper()}") is None and env.get(variable):
            return env[variable]
        return written.get(key)

    address = first("address", "TEMPORAL_ADDRESS")
    embedded = address is None and "address" in dev
    if address and address != written.get("address"):
        require_host_port("TEMPORAL_ADDRESS", address)
    api_key = first("api_key", "TEMPORAL_API_KEY")
    if isinstance(api_key, str):
        remember_secret(api_key)
    return TemporalSettings(
        address=address or dev.get("address"),
        namespace=first("namespace", "TEMPORAL_NAMESPACE") or (dev.get("namespace") if embedded else None),
        task_queue=written.get("task_queue", DEFAULT_TASK_QUEUE),
        api_key=parse_secret(api_key, "temporal.api_key") if isinstance(api_key, Mapping) else api_key,
        tls=_tls(written.get("tls")),
        profile=first("profile", "TEMPORAL_PROFILE"),
        # The embedded UI shows only the embedded server, wherever that server's address was set.
        # It is printed as a link, and a browser asks for credentials.
        web_ui=without_credentials(written.get("web_ui"))
        or (dev.get("web_ui") if dev.get("address") in (None, address) or embedded else None),
        embedded=embedded,
    )


def _tls(written: Any) -> bool | Tls | None:
    return Tls(**written) if isinstance(written, dict) else written


def _worker(written: Table) -> WorkerSettings:
    key, accept = written.get("definition_key"), written.get("accept", "signed")
    if accept not in ("signed", "any"):
        raise UsageError(f'worker.accept must be "signed" or "any", not {accept}')
    return WorkerSettings(parse_secret(key, "worker.definition_key") if isinstance(key, Mapping) else key, accept)


def _connection(name: str, table: Any, dev: Table, root: Path) -> Connection:
    if not isinstance(table, dict):
        raise UsageError(f"connections.{name} must be a table: [connections.{name}]")
    kind = table.get("kind", "sql")
    if kind not in tuple(CONNECTION_TABLES):  # a tuple, because what is written may have no hash
        raise UsageError(f"connections.{name}.kind must be sql or http, not {kind}")
    CONNECTION_TABLES[kind].check(table, f"[connections.{name}]")
    url = table.get("url", dev.get("url") if kind == "sql" else None)
    written = parse_secret(url, f"connections.{name}.url") if isinstance(url, Mapping) else url
    options = {key: value for key, value in table.items() if key not in ("kind", "url")}
    if kind == "http":
        _check_token_url(name, options)
        if isinstance(written, str):
            refuse_plain_credentials(name, written, options)
    return Connection(name, kind, root, written, options, embedded=kind == "sql" and "url" not in table)


def _check_token_url(name: str, options: Table) -> None:
    auth = options.get("auth", {})
    oauth2 = auth.get("oauth2", {})
    if isinstance(oauth2, dict) and isinstance(url := oauth2.get("token_url"), str):
        require_http_url(f"connections.{name}.auth.oauth2.token_url", url)


def _is_sql(connection: Any) -> bool:
    return isinstance(connection, dict) and connection.get("kind", "sql") == "sql"


def _catalogs(written: Table, dev: Table) -> Table:
    """The tables as written; those on the embedded PostgreSQL are completed with what ``saga dev up`` wrote."""
    complete = {
        name: {**dev.get(name, {}), **table} if _is_embedded(table) else table for name, table in written.items()
    }
    return {
        name: {key: str(value) if isinstance(value, Decimal) else value for key, value in table.items()}
        for name, table in complete.items()
    }


def _is_embedded(catalog: Table) -> bool:
    return catalog.get("type", "sql") == "sql" and not {"uri", "py-catalog-impl"} & catalog.keys()
