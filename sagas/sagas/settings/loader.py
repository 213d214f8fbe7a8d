"""Finds and reads the settings.

Precedence: ``SAGA_…__…`` > ``TEMPORAL_*`` > saga.toml > ``.saga/dev.toml`` (services of ``saga dev up`` that are
still running). Command-line flags override all of these in the commands. The Temporal profile has the lowest
precedence and is read where the client is created, so that only commands that connect pay for it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sagas.errors import UsageError, did_you_mean
from sagas.input_limits import MAX_SETTINGS_BYTES
from sagas.settings.connections import HttpService, SqlConnection
from sagas.settings.dev_stack import DEV_FILE, read_dev_file
from sagas.settings.forms import Form, Variable
from sagas.settings.kafka import KafkaSettings
from sagas.settings.masking import remember_settings, without_credentials
from sagas.settings.model import Settings
from sagas.settings.table import NO_TABLE, form_of, keys
from sagas.settings.temporal import TemporalSettings
from sagas.settings.toml_files import UnreadableToml, read_toml
from sagas.settings.trust import require_own
from sagas.settings.wrong_setting import WrongSetting, line_of
from sagas.text.bounded_files import read_bounded, short_path
from sagas.text.exact_json import RepeatedName, decode_unambiguous

CONFIG_NAME = "saga.toml"

_KEYS = tuple(name for name, _ in keys(Settings))

TEMPORAL_VARIABLES = {
    f"temporal.{name}": item.name
    for name, field in keys(TemporalSettings)
    for item in field.metadata
    if isinstance(item, Variable)
}
"""The variables that Temporal's own tools also read."""

_WHOLE_FILE = ""
"""The name of no setting, for a file of which nothing can be read."""

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
        raise _shortened(error) from None


def load_valid_settings(
    config: Path | str | None = None, *, without_file: bool = False
) -> tuple[Settings, list[UsageError]]:
    """The settings without those that are wrong, and a mistake for each of these.

    ``without_file``: also without a file that cannot be read, or is not valid TOML; otherwise that raises UsageError.
    """
    without: list[str] = []
    mistakes: list[UsageError] = []
    while True:
        try:
            return _load(None, config, os.environ, without), mistakes
        except _PlacedMistake as mistake:
            if mistake.setting in without:
                raise _shortened(mistake) from None
            mistakes.append(_shortened(mistake))
            without.append(mistake.setting)
        except UnreadableToml as mistake:
            if not without_file or _WHOLE_FILE in without:
                raise _shortened(mistake) from None
            mistakes.append(_shortened(mistake))
            without.append(_WHOLE_FILE)


class _PlacedMistake(UsageError):
    """A wrong setting, with its place in the message."""

    def __init__(self, setting: str, message: str, help: str | None) -> None:
        super().__init__(message, help=help)
        self.setting = setting


def _shortened(error: UsageError) -> UsageError:
    if len(error.message) <= _LONGEST_MESSAGE:
        return error
    return UsageError(f"{error.message[:_LONGEST_MESSAGE]}…", help=error.help)


_TABLE_OF_SEVERAL = re.compile(r"\[\[([\w.-]+)\]\]")


def _remove(written: Table, setting: str) -> None:
    """Remove a setting; the table that it is missing in, if it is not there. Of tables of one name: all of them."""
    if (several := _TABLE_OF_SEVERAL.match(setting)) is not None:
        setting = several[1]
    owner, key, table, parts = written, "", written, setting.split(".")
    while parts:
        end = next((end for end in range(len(parts), 0, -1) if ".".join(parts[:end]) in table), 0)
        if not end:
            break
        owner, key, parts = table, ".".join(parts[:end]), parts[end:]
        if not isinstance(table := owner[key], dict):
            break
    owner.pop(key, None)


def _load(
    start_dir: Path | str | None, config: Path | str | None, env: Mapping[str, str], without: Sequence[str] = ()
) -> Settings:
    root, config_file = find_project(start_dir, config)
    require_own(config_file or root / DEV_FILE, env)
    written = read_toml(config_file) if config_file and _WHOLE_FILE not in without else {}
    variables = _apply_environment(written, env)
    remember_settings(written)  # before a message quotes a value
    for setting in without:
        _remove(written, setting)
    try:
        settings = Settings.read(written)
        _check_references(settings)
    except WrongSetting as error:
        place, message = variables.get(error.setting), error.message
        if error.is_table:
            place = None if error.setting else config_file.name if config_file else CONFIG_NAME
            message = error.message if error.setting else error.what[2:]
        elif place in TEMPORAL_VARIABLES.values():
            raise _PlacedMistake(error.setting, f"{place} {error.what}", error.help) from None
        elif place is None and config_file is not None:
            place = _place(config_file, error.setting)
        header = f": [{error.setting}]" if error.what == NO_TABLE else ""
        setting = ".".join(filter(None, (error.setting, error.unknown)))
        raise _PlacedMistake(setting, f"{f'{place}: ' if place else ''}{message}{header}", error.help) from None
    dev = read_dev_file(root)
    remember_settings(dev)
    return _completed(settings, root, config_file, dev)


def _place(file: Path, setting: str) -> str:
    """The name of the file, and the line if it is clear."""
    try:
        line = line_of(read_bounded(file, MAX_SETTINGS_BYTES).decode(), setting)
    except (OSError, ValueError, UsageError):  # it has been changed since it was read
        line = None
    return file.name if line is None else f"{file.name}:{line}"


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
            path.append(_matching_key(part, _KEYS if position == 0 else table))
            if position == 0 and path[0] not in _KEYS:
                raise UsageError(f"{variable}: unknown setting {path[0]}{did_you_mean(path[0], _KEYS)}")
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
    _apply_temporal_variables(written, env, variables)
    return variables


def _apply_temporal_variables(written: Table, env: Mapping[str, str], variables: dict[str, str]) -> None:
    """Apply ``TEMPORAL_ADDRESS`` and the like, which override the file."""
    for setting, variable in TEMPORAL_VARIABLES.items():
        if env.get(variable) and env.get(f"SAGA_{setting.replace('.', '__')}".upper()) is None:
            table = written.setdefault("temporal", {})
            if isinstance(table, dict):  # else the check refuses it
                table[setting.removeprefix("temporal.")] = env[variable]
                variables[setting] = variable


def find_form(path: Sequence[str]) -> Form | None:
    """The form of the key with this path, as in ``("kafka", "prefix")``; None below tables with free names."""
    form, tables, remaining_path = None, (Settings,), list(path)
    while remaining_path:
        key = remaining_path.pop(0)
        form = next((form_of(field) for table in tables for name, field in keys(table) if name == key), None)
        if form is None:
            return None
        tables = form.tables
        if form.is_named and remaining_path:
            remaining_path.pop(0)  # a name that the project chooses
            form = None
    return form


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


def _matching_key(part: str, keys_of_table: Mapping[str, Any] | tuple[str, ...]) -> str:
    plain = _plain(part)
    return next((key for key in keys_of_table if _plain(key) == plain), plain)


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
    """A key has the type of its form; below it are texts, among ``vars`` any JSON."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{variable} is not UTF-8 text") from None
    form = find_form(path)
    if form is None:
        parsed = _parsed(variable, text) if path[0] != "kafka" else text  # a password may look like a number
        return parsed if path[0] == "vars" or isinstance(parsed, dict) else text
    if form.is_text:
        return text
    parsed = _parsed(variable, text)
    if form.type == "list of strings" and not isinstance(parsed, list):
        return [item.strip() for item in text.split(",") if item.strip()]
    return parsed


def _parsed(variable: str, text: str) -> Any:
    """The JSON of a variable, else its text. Raises UsageError for an object with a name twice."""
    try:
        return decode_unambiguous(text)
    except RepeatedName as error:
        raise UsageError(f"{variable}: {error}") from None
    except (ValueError, RecursionError):
        return text


def _check_references(settings: Settings) -> None:
    """Raises WrongSetting for the name of a connection that is none, or no database, and for a missing ledger."""
    databases = tuple(name for name, connection in settings.connections.items() if connection.kind == "sql")
    references = [
        ("ledger.connection", settings.ledger.connection),
        ("locks.connection", settings.locks.connection),
        ("kafka.outbox", settings.kafka.outbox),
        ("spark.ledger", settings.spark.ledger),
        *(("enqueue.connections", name) for name in settings.enqueue.connections),
    ]
    for setting, name in references:
        if name is not None and name not in databases:
            what = f"names {name}, which is not a SQL connection{did_you_mean(name, databases)}"
            raise WrongSetting(setting, what, help=f"add [connections.{name}] to saga.toml")
    enqueuing = settings.enqueue.connections
    for name in settings.enqueue.sagas:
        if name not in enqueuing:
            what = f"names {name}, which is not among [enqueue] connections{did_you_mean(name, enqueuing)}"
            raise WrongSetting("enqueue.sagas", what, help="add it to [enqueue] connections, or leave it out")
    for name, connection in settings.connections.items():
        if connection.circuit_breaker is not None and settings.ledger.connection is None:
            what = "needs a ledger, in which the workers share its state"
            raise WrongSetting(
                f"connections.{name}.circuit_breaker", what, help="set [ledger] connection, and run saga setup"
            )
    for name, token in settings.serve.tokens.items():
        if "operate" in token.scopes and settings.ledger.connection is None:
            what = "has the scope operate, which needs a ledger: it records who has done what"
            raise WrongSetting(f"serve.tokens.{name}.scopes", what, help="set [ledger] connection, and run saga setup")


def _completed(settings: Settings, root: Path, config_file: Path | None, dev: Table) -> Settings:
    """The settings with the services of ``saga dev up``, and with what one table takes from another."""
    embedded = tuple(name for name, catalog in settings.catalogs.items() if _is_embedded(catalog))
    catalogs = {name: {**dev.get("catalogs", {}).get(name, {}), **settings.catalogs[name]} for name in embedded}
    own = {
        "root": root,
        "config_file": config_file,
        "embedded_catalogs": embedded,
        "temporal": _temporal(settings.temporal, dev.get("temporal", {})),
        "connections": {
            name: _connection(settings, name, root, dev.get("connections", {}).get(name, {}))
            for name in settings.connections
        },
        "kafka": _kafka(settings, root, dev.get("kafka", {})),
        "catalogs": {**settings.catalogs, **catalogs},
    }
    return settings.model_copy(update=own)


def _temporal(temporal: TemporalSettings, dev: Table) -> TemporalSettings:
    embedded = temporal.address is None and "address" in dev
    return temporal.model_copy(
        update={
            "embedded": embedded,
            "address": temporal.address or dev.get("address"),
            "namespace": temporal.namespace or (dev.get("namespace") if embedded else None),
            # The embedded UI shows only the embedded server, wherever that server's address was set.
            # It is printed as a link, and a browser asks for credentials.
            "web_ui": without_credentials(temporal.web_ui)
            or (dev.get("web_ui") if dev.get("address") in (None, temporal.address) or embedded else None),
        }
    )


def _connection(settings: Settings, name: str, root: Path, dev: Table) -> SqlConnection | HttpService:
    connection, own = settings.connections[name], {"name": name, "root": root}
    if isinstance(connection, SqlConnection):
        own |= {
            "embedded": connection.url_setting is None,
            "url_setting": connection.url_setting or dev.get("url"),
            "keeps_outputs": name == settings.spark_ledger,
            "keeps_ledger": name == settings.ledger.connection,
            "keeps_locks": name == settings.lock_connection,
            "codec_key": settings.codec.key,
            "encrypts_outbox": settings.codec.outbox,
            "keeps_enqueued": name in settings.enqueue.connections,
        }
    return connection.model_copy(update=own)


def _kafka(settings: Settings, root: Path, dev: Table) -> KafkaSettings:
    kafka = settings.kafka
    own = {
        "root": root,
        "configured": "kafka" in settings.model_fields_set,
        "embedded": kafka.bootstrap_servers is None and "bootstrap_servers" in dev,
        "bootstrap_servers": kafka.bootstrap_servers or dev.get("bootstrap_servers"),
        "outbox": kafka.outbox or settings.ledger.connection,
        "dead_letter_key": settings.codec.key if settings.codec.dead_letters else None,
    }
    return kafka.model_copy(update=own)


def _is_embedded(catalog: Mapping[str, Any]) -> bool:
    return catalog.get("type", "sql") == "sql" and not {"uri", "py-catalog-impl"} & catalog.keys()
