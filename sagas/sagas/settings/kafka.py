"""Parses ``[kafka]`` of saga.toml, and refuses settings that would weaken a guarantee."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sagas.builtins.messaging import FORM_DESCRIPTION, TOPIC, TOPIC_NAME
from sagas.definition.times import parse_duration
from sagas.errors import UsageError, did_you_mean
from sagas.settings.secrets import Secret, parse_secret, resolve_secret
from sagas.settings.tables import KAFKA


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """How to reach Kafka, and which resources the engine uses there.

    ``configured``: saga.toml or the environment has a ``[kafka]`` table. ``embedded``: the address is the one that
    `saga dev up` wrote. ``outbox`` is the connection that holds the rows of `kafka.publish` and `kafka.request`.
    ``prefix`` starts the name of every transactional id, group id and topic of the engine. ``transaction_timeout`` and
    ``retention`` are in seconds, ``batch`` is the number of events per transaction, ``max_message_bytes`` limits key,
    value and headers of one event together, ``shards`` is how many relays can work on one outbox concurrently.
    ``topics`` are the topics that only Python code names, not a definition. ``accept_replies_without_token``: replies
    to `kafka.request` need not prove that their sender has received the command. ``client`` holds properties of
    librdkafka.
    """

    root: Path = Path()
    configured: bool = False
    bootstrap_servers: str | None = None
    embedded: bool = False
    outbox: str | None = None
    prefix: str = "saga"
    transaction_timeout: float = 60.0
    batch: int = 500
    max_message_bytes: int = 1_000_000
    shards: int = 4
    retention: float = 7 * 86_400.0
    topics: tuple[str, ...] = ()
    accept_replies_without_token: bool = False
    client: Mapping[str, str | Secret] = field(default_factory=dict)

    @property
    def servers(self) -> str:
        """The bootstrap servers, ``host:port`` separated by commas. Raises UsageError if none are set."""
        if self.bootstrap_servers is None:
            raise UsageError(
                "no Kafka is configured, and there is no embedded broker",
                help="run saga dev up, or set bootstrap_servers under [kafka] in saga.toml",
            )
        return self.bootstrap_servers

    def client_properties(self) -> dict[str, str]:
        """``client`` with its secrets resolved; file paths are relative to the project folder.

        Raises:
            UsageError: a secret or a file is missing.
        """
        properties: dict[str, str] = {}
        for name, value in self.client.items():
            text = resolve_secret(value, setting=f"kafka.client.{name}", root=self.root)
            is_file = name.endswith(".location") and text != "probe"
            properties[name] = self._file(name, text) if is_file else text
        return properties

    def _file(self, name: str, text: str) -> str:
        path = self.root / Path(text).expanduser()
        if not path.exists():
            raise UsageError(f"kafka.client.{name} names {path}, which does not exist")
        return str(path)


_DEFAULT = KafkaSettings()
_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,100}")

REQUIRED_VALUES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "acks": (("all", "-1"), "an event that only one broker stores can be lost"),
    "request.required.acks": (("all", "-1"), "an event that only one broker stores can be lost"),
    "enable.idempotence": (("true",), "without it a network retry duplicates events"),
    "isolation.level": (("read_committed",), "otherwise events of aborted transactions would be read"),
    "enable.auto.commit": (("false",), "an offset is committed only after the effect of its event"),
    "enable.auto.offset.store": (("false",), "an offset is committed only after the effect of its event"),
    "auto.offset.reset": (("earliest", "smallest", "beginning"), "events from before the first start would be lost"),
}
"""Properties with the values that keep the guarantees, and what any other value would break."""

ENGINE_PROPERTIES: Mapping[str, str] = {
    "bootstrap.servers": "set bootstrap_servers under [kafka]",
    "metadata.broker.list": "set bootstrap_servers under [kafka]",
    "transactional.id": "the engine derives it from the outbox and its shard, so that an older relay is fenced",
    "transaction.timeout.ms": "set transaction_timeout under [kafka]",
    "group.id": "the engine derives it from prefix under [kafka] and the saga or consumer",
    "group.instance.id": "the engine names the members of its groups",
    "message.max.bytes": "set max_message_bytes under [kafka]",
}
"""Properties that only the engine sets, and why or where they are set instead."""


def parse_kafka(
    table: Mapping[str, Any] | None,
    dev_stack: Mapping[str, str],
    root: Path,
    databases: Collection[str],
    ledger: Mapping[str, Any],
) -> KafkaSettings:
    """The settings of ``table`` (None: it is missing), with defaults from ``dev_stack``, which `saga dev up` wrote.

    ``databases`` are the names of the SQL connections. The outbox is in the connection of ``ledger`` unless
    ``table`` names another one.

    Raises:
        UsageError: a setting is unknown or invalid, or would weaken a guarantee.
    """
    given = table or {}
    KAFKA.refuse_unknown(given, "[kafka]")
    named = _string(given, "bootstrap_servers")
    outbox = _string(given, "outbox")
    if outbox is not None and outbox not in databases:
        raise UsageError(
            f"kafka.outbox names {outbox}, which is not a SQL connection{did_you_mean(outbox, tuple(databases))}",
            help=f"add [connections.{outbox}] to saga.toml",
        )
    prefix = _string(given, "prefix") or _DEFAULT.prefix
    if not _PREFIX.fullmatch(prefix):
        raise UsageError(f"kafka.prefix is {prefix}; use at most 100 letters, digits, `.`, `_` and `-`")
    return KafkaSettings(
        root=root,
        configured=table is not None,
        bootstrap_servers=named or dev_stack.get("bootstrap_servers"),
        embedded=named is None and "bootstrap_servers" in dev_stack,
        outbox=outbox or ledger.get("connection"),
        prefix=prefix,
        transaction_timeout=_seconds(given, "transaction_timeout", _DEFAULT.transaction_timeout, least=1.0),
        batch=_count(given, "batch", _DEFAULT.batch, most=100_000),
        max_message_bytes=_count(given, "max_message_bytes", _DEFAULT.max_message_bytes, most=1_000_000_000),
        shards=_count(given, "shards", _DEFAULT.shards, most=256),
        retention=_seconds(given, "retention", _DEFAULT.retention, least=1.0),
        topics=_topics(given.get("topics", [])),
        accept_replies_without_token=_boolean(given, "accept_replies_without_token"),
        client=dict(_client_properties(given.get("client", {}))),
    )


def _topics(given: Any) -> tuple[str, ...]:
    # An environment variable holds the topics as one string, separated by commas.
    names = [one.strip() for one in given.split(",") if one.strip()] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise UsageError("kafka.topics must be a list of topic names")
    for name in names:
        if not re.fullmatch(TOPIC_NAME, name):
            raise UsageError(f"kafka.topics: {name!r} is not {TOPIC[FORM_DESCRIPTION]}")
    return tuple(dict.fromkeys(names))


def _client_properties(table: Any) -> Iterator[tuple[str, str | Secret]]:
    if not isinstance(table, Mapping):
        raise UsageError("kafka.client must be a table: [kafka.client]")
    for name, value in _flattened(table, ""):
        if name in ENGINE_PROPERTIES:
            raise UsageError(f"kafka.client.{name} cannot be set: {ENGINE_PROPERTIES[name]}")
        if name in REQUIRED_VALUES and value not in REQUIRED_VALUES[name][0]:
            required, why = REQUIRED_VALUES[name]
            raise UsageError(f"kafka.client.{name} must stay {required[0]}: {why}")
        yield name, value


def _flattened(table: Mapping[str, Any], above: str) -> Iterator[tuple[str, str | Secret]]:
    """Dots in property names become nested tables in TOML, and underscores in environment variables."""
    for key, value in table.items():
        name = f"{above}{key}".replace("_", ".")
        match value:
            case bool():
                yield name, str(value).lower()
            case str() | int() | float():
                yield name, str(value)
            case Mapping() if set(value) <= {"env", "file"}:
                yield name, parse_secret(value, f"kafka.client.{name}")
            case Mapping():
                yield from _flattened(value, f"{name}.")
            case _:
                raise UsageError(f"kafka.client.{name} must be a string, a number, true or false")


def _string(table: Mapping[str, Any], key: str) -> str | None:
    value = table.get(key)
    if value is not None and not (isinstance(value, str) and value.strip()):
        raise UsageError(f"kafka.{key} must be a string")
    return value


def _boolean(table: Mapping[str, Any], key: str) -> bool:
    value = table.get(key, False)
    if not isinstance(value, bool):
        raise UsageError(f"kafka.{key} must be true or false, not {value!r}")
    return value


def _count(table: Mapping[str, Any], key: str, default: int, *, most: int) -> int:
    value = table.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise UsageError(f"kafka.{key} must be a whole number from 1 to {most}, not {value!r}")
    return value


def _seconds(table: Mapping[str, Any], key: str, default: float, *, least: float) -> float:
    if key not in table:
        return default
    try:
        seconds = parse_duration(str(table[key]))
    except ValueError as error:
        raise UsageError(f"kafka.{key}: {error}, such as 60s or 7d") from None
    if seconds < least:
        raise UsageError(f"kafka.{key} must be at least {least:.0f}s")
    return seconds
