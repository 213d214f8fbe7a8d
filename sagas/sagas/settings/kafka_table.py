"""Reads ``[kafka]`` of saga.toml, and refuses what would weaken a guarantee."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from sagas.builtins_messaging import FORM, TOPIC, TOPIC_NAME
from sagas.definition.durations import parse_duration
from sagas.errors import UsageError
from sagas.settings.kafka import KafkaSettings
from sagas.settings.model import did_you_mean
from sagas.settings.secrets import Secret, as_secret

_KEYS = (
    "bootstrap_servers", "outbox", "prefix", "transaction_timeout", "batch", "max_message_bytes", "shards",
    "retention", "topics", "client",
)  # fmt: skip
_DEFAULT = KafkaSettings()
_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,100}")

_ONLY: Mapping[str, tuple[tuple[str, ...], str]] = {
    "acks": (("all", "-1"), "an event that one broker alone has can be lost"),
    "request.required.acks": (("all", "-1"), "an event that one broker alone has can be lost"),
    "enable.idempotence": (("true",), "without it a retry on the network doubles events"),
    "isolation.level": (("read_committed",), "otherwise events of aborted transactions would count"),
    "enable.auto.commit": (("false",), "an offset may move only after the effect of its event"),
    "enable.auto.offset.store": (("false",), "an offset may move only after the effect of its event"),
    "auto.offset.reset": (("earliest", "smallest", "beginning"), "events from before the first start would be lost"),
}
"""Properties with the values that keep the guarantees, and what any other value would break."""

_OURS: Mapping[str, str] = {
    "bootstrap.servers": "it is bootstrap_servers under [kafka]",
    "metadata.broker.list": "it is bootstrap_servers under [kafka]",
    "transactional.id": "the engine derives it from the outbox and its shard, so that an older relay is fenced",
    "transaction.timeout.ms": "it is transaction_timeout under [kafka]",
    "group.id": "the engine derives it from prefix under [kafka] and the saga or consumer",
    "group.instance.id": "the engine names the members of its groups itself",
    "message.max.bytes": "it is max_message_bytes under [kafka]",
}
"""Properties that the engine sets itself, and why they are not the project's."""


def read_kafka(
    table: Mapping[str, Any] | None,
    dev: Mapping[str, str],
    root: Path,
    databases: Collection[str],
    ledger: Mapping[str, Any],
) -> KafkaSettings:
    """``table`` as written (None: not at all), over what `saga dev up` wrote (``dev``).

    ``databases`` are the names of the SQL connections; the one of ``ledger`` keeps the outbox unless another is named.

    Raises:
        UsageError: something is unknown, wrong, or weaker than the engine's guarantees allow.
    """
    given = table or {}
    for key in given:
        if key not in _KEYS:
            raise UsageError(f"[kafka]: unknown setting {key}{did_you_mean(key, _KEYS)}")
    named = _text(given, "bootstrap_servers")
    outbox = _text(given, "outbox")
    if outbox is not None and outbox not in databases:
        raise UsageError(
            f"kafka.outbox names {outbox}, which is no SQL connection{did_you_mean(outbox, tuple(databases))}",
            help=f"[connections.{outbox}] in saga.toml",
        )
    prefix = _text(given, "prefix") or _DEFAULT.prefix
    if not _PREFIX.fullmatch(prefix):
        raise UsageError(
            f"kafka.prefix is {prefix}, but names in Kafka have letters, digits, `.`, `_` and `-` only (at most 100)."
        )
    return KafkaSettings(
        root=root,
        written=table is not None,
        bootstrap_servers=named or dev.get("bootstrap_servers"),
        embedded=named is None and "bootstrap_servers" in dev,
        outbox=outbox or ledger.get("connection"),
        prefix=prefix,
        transaction_timeout=_seconds(given, "transaction_timeout", _DEFAULT.transaction_timeout, least=1.0),
        batch=_count(given, "batch", _DEFAULT.batch, most=100_000),
        max_message_bytes=_count(given, "max_message_bytes", _DEFAULT.max_message_bytes, most=1_000_000_000),
        shards=_count(given, "shards", _DEFAULT.shards, most=256),
        retention=_seconds(given, "retention", _DEFAULT.retention, least=1.0),
        topics=_topics(given.get("topics", [])),
        client=dict(_client(given.get("client", {}))),
    )


def _topics(given: Any) -> tuple[str, ...]:
    # In the environment it is one text, with commas between.
    names = [one.strip() for one in given.split(",") if one.strip()] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise UsageError("kafka.topics is a list of names of topics.")
    for name in names:
        if not re.fullmatch(TOPIC_NAME, name):
            raise UsageError(f"kafka.topics: {name!r} is not {TOPIC[FORM]}.")
    return tuple(dict.fromkeys(names))


def _client(table: Any) -> Iterator[tuple[str, str | Secret]]:
    if not isinstance(table, Mapping):
        raise UsageError("kafka.client must be a table: [kafka.client].")
    for name, value in _flat(table, ""):
        if name in _OURS:
            raise UsageError(f"kafka.client.{name} cannot be set: {_OURS[name]}.")
        if name in _ONLY and value not in _ONLY[name][0]:
            kept, why = _ONLY[name]
            raise UsageError(f"kafka.client.{name} must stay {kept[0]}: {why}.")
        yield name, value


def _flat(table: Mapping[str, Any], above: str) -> Iterator[tuple[str, str | Secret]]:
    """Properties have dots, which TOML reads as tables within tables; in variables they are underscores."""
    for key, value in table.items():
        name = f"{above}{key}".replace("_", ".")
        match value:
            case bool():
                yield name, str(value).lower()
            case str() | int() | float():
                yield name, str(value)
            case Mapping() if set(value) <= {"env", "file"}:
                yield name, as_secret(value, f"kafka.client.{name}")
            case Mapping():
                yield from _flat(value, f"{name}.")
            case _:
                raise UsageError(f"kafka.client.{name} is a text, a number, true or false.")


def _text(table: Mapping[str, Any], key: str) -> str | None:
    value = table.get(key)
    if value is not None and not (isinstance(value, str) and value.strip()):
        raise UsageError(f"kafka.{key} must be a text.")
    return value


def _count(table: Mapping[str, Any], key: str, default: int, *, most: int) -> int:
    value = table.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise UsageError(f"kafka.{key} is a whole number from 1 to {most}, not {value!r}.")
    return value


def _seconds(table: Mapping[str, Any], key: str, default: float, *, least: float) -> float:
    if key not in table:
        return default
    try:
        seconds = parse_duration(str(table[key]))
    except ValueError as error:
        raise UsageError(f"kafka.{key}: {error}, such as 60s or 7d.") from None
    if seconds < least:
        raise UsageError(f"kafka.{key} is at least {least:.0f}s.")
    return seconds
