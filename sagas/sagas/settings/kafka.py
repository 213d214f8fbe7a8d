"""``[kafka]`` of saga.toml, and the refusal of settings that would weaken a guarantee."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from sagas.builtins.messaging import FORM_DESCRIPTION, TOPIC, TOPIC_NAME
from sagas.errors import UsageError
from sagas.settings.addresses import require_brokers, require_http_url
from sagas.settings.forms import TEXTS, Count, Flag, OptionalText, count, duration, properties, text
from sagas.settings.secrets import Secret, resolve_secret
from sagas.settings.table import Table, setting
from sagas.settings.wrong_setting import WrongSetting

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


def _check_prefix(setting: str, prefix: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", prefix):
        raise WrongSetting(setting, f"is {prefix}; use at most 100 letters, digits, `.`, `_` and `-`")


def _read_topics(names: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        if not re.fullmatch(TOPIC_NAME, name):
            raise WrongSetting("", f": {name!r} is not {TOPIC[FORM_DESCRIPTION]}")
    return tuple(dict.fromkeys(names))


def _check_property(name: str, value: str | Secret) -> None:
    if name in ENGINE_PROPERTIES:
        raise WrongSetting(name, f"cannot be set: {ENGINE_PROPERTIES[name]}")
    if name in REQUIRED_VALUES and value not in REQUIRED_VALUES[name][0]:
        required, why = REQUIRED_VALUES[name]
        raise WrongSetting(name, f"must stay {required[0]}: {why}")
    if name.endswith(".url") and isinstance(value, str):
        require_http_url(name, value)


class KafkaSettings(Table):
    """How to reach Kafka, and which resources the engine uses there. Durations are in seconds.

    ``configured``: saga.toml or the environment has a ``[kafka]`` table. ``embedded``: the address is the one that
    `saga dev up` wrote. ``dead_letter_key``: the keys of ``[codec]``, if they encrypt dead letters.
    """

    heading = "kafka"
    summary = "For projects whose sagas [publish, request, consume or are triggered](../how-to/kafka.md)."

    root: Path = Path()
    configured: bool = False
    embedded: bool = False
    dead_letter_key: str | Secret | None = Field(default=None, repr=False)
    bootstrap_servers: Annotated[str | None, text(require_brokers)] = setting(
        None,
        "`host:port` of brokers, separated by commas; default: the broker of `saga dev up`",
        "kafka-1:9092,kafka-2:9092",
    )
    outbox: OptionalText = setting(
        None,
        "the SQL connection that stores the rows of `kafka.publish` and `kafka.request`; default: `connection` of "
        "`[ledger]`",
        "shop",
    )
    prefix: Annotated[str, text(_check_prefix)] = setting(
        "saga",
        "starts every transactional id, consumer group and topic of the engine. Deployments that share a cluster "
        "need different prefixes. Letters, digits, `.`, `_`, `-`",
    )
    transaction_timeout: Annotated[float, duration(least=1.0)] = setting(
        60.0,
        "how long a transaction may stay open before the broker aborts it, and so how long a hanging relay can "
        "hold back readers. At most the broker's `transaction.max.timeout.ms`: the relay refuses to start above it",
        "60s",
    )
    batch: Annotated[int, count(most=100_000)] = setting(5000, "the maximum number of events in a transaction")
    max_message_bytes: Count = setting(
        1_000_000,
        "the maximum size of key, value and headers of one event. A larger event fails its step before anything is "
        "done. Keep it below the topics' `max.message.bytes`",
    )
    max_signals: Count = setting(
        1000,
        "the maximum number of signals that a trigger process sends to one run of a saga; further ones become dead "
        "letters. Only the first signal of a name counts for a saga",
    )
    shards: Annotated[int, count(most=256)] = setting(
        4, "how many relays can work on one outbox concurrently; fixed when its tables are created"
    )
    retention: Annotated[float, duration(least=1.0)] = setting(
        7 * 86_400.0,
        "how long topics that the engine creates keep their events, and how long an outbox keeps published rows",
        "7d",
    )
    topics: Annotated[tuple[str, ...], replace(TEXTS, read=_read_topics)] = setting(
        (),
        "topics that only Python code emits to (`step.emit(topic, …)`): `saga setup` creates them and `saga "
        "doctor` checks them. In the environment separated by commas",
        ["orders", "mails"],
    )
    accept_replies_without_token: Flag = setting(
        False,
        "`true`: also accept replies to `kafka.request` without the header `sagatoken`, from participants that do "
        "not copy it yet. Every principal that may write to the reply topic can then answer for them",
    )
    client: Annotated[Mapping[str, str | Secret], properties(_check_property, secrets=True, dots="._")] = setting(
        {}, "properties of librdkafka, see below", repr=False
    )

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
