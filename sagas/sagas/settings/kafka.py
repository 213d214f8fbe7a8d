"""Parses ``[kafka]`` of saga.toml, and refuses settings that would weaken a guarantee."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from sagas.builtins.messaging import FORM_DESCRIPTION, TOPIC, TOPIC_NAME
from sagas.definition.times import parse_duration
from sagas.errors import UsageError
from sagas.settings.addresses import require_http_url
from sagas.settings.secrets import Secret, parse_secret, resolve_secret


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
    batch: int = 5000
    max_message_bytes: int = 1_000_000
    shards: int = 4
    retention: float = 7 * 86_400.0
    topics: tuple[str, ...] = ()
    accept_replies_without_token: bool = False
    client: Mapping[str, str | Secret] = field(default_factory=dict, repr=False)

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
    "client.id": "it is prefix under [kafka]",
    "topic.metadata.propagation.max.ms": "the engine reports a missing topic after five seconds",
    "message.max.bytes": "set max_message_bytes under [kafka]",
    "enable.partition.eof": "the engine sets it for the readers that expect it",
}
"""Properties that only the engine sets, and why or where they are set instead."""


def parse_kafka(
    table: Mapping[str, Any] | None,
    dev_stack: Mapping[str, str],
    root: Path,
    ledger: Mapping[str, Any],
) -> KafkaSettings:
    """The settings of ``table`` (None: it is missing), with defaults from ``dev_stack``, which `saga dev up` wrote.

    The outbox is in the connection of ``ledger`` unless ``table`` names another one.

    Raises:
        UsageError: a setting is unknown or invalid, or would weaken a guarantee.
    """
    given = table or {}
    named = given.get("bootstrap_servers")
    outbox = given.get("outbox")
    prefix = given.get("prefix", _DEFAULT.prefix)
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
        batch=given.get("batch", _DEFAULT.batch),
        max_message_bytes=given.get("max_message_bytes", _DEFAULT.max_message_bytes),
        shards=given.get("shards", _DEFAULT.shards),
        retention=_seconds(given, "retention", _DEFAULT.retention, least=1.0),
        topics=_topics(given.get("topics", [])),
        accept_replies_without_token=given.get("accept_replies_without_token", False),
        client=dict(_client_properties(given.get("client", {}))),
    )


def _topics(names: Collection[str]) -> tuple[str, ...]:
    for name in names:
        if not re.fullmatch(TOPIC_NAME, name):
            raise UsageError(f"kafka.topics: {name!r} is not {TOPIC[FORM_DESCRIPTION]}")
    return tuple(dict.fromkeys(names))


def _client_properties(table: Mapping[str, Any]) -> Iterator[tuple[str, str | Secret]]:
    for name, value in _flattened(table, ""):
        if name in ENGINE_PROPERTIES:
            raise UsageError(f"kafka.client.{name} cannot be set: {ENGINE_PROPERTIES[name]}")
        if name in REQUIRED_VALUES and value not in REQUIRED_VALUES[name][0]:
            required, why = REQUIRED_VALUES[name]
            raise UsageError(f"kafka.client.{name} must stay {required[0]}: {why}")
        if name.endswith(".url") and isinstance(value, str):
            require_http_url(f"kafka.client.{name}", value)
        yield name, value


def _flattened(table: Mapping[str, Any], above: str) -> Iterator[tuple[str, str | Secret]]:
    """Dots in property names become nested tables in TOML, and underscores in environment variables."""
    for key, value in table.items():
        name = f"{above}{key}".replace("_", ".")
        match value:
            case bool():
                yield name, str(value).lower()
            case str() | int() | Decimal():
                yield name, str(value)
            case Mapping() if set(value) <= {"env", "file"}:
                yield name, parse_secret(value, f"kafka.client.{name}")
            case Mapping():
                yield from _flattened(value, f"{name}.")
            case _:
                raise UsageError(f"kafka.client.{name} must be a string, a number, true or false")


def _seconds(table: Mapping[str, Any], key: str, default: float, *, least: float) -> float:
    if key not in table:
        return default
    seconds = parse_duration(table[key])
    if seconds < least:
        raise UsageError(f"kafka.{key} must be at least {least:.0f}s")
    return seconds
