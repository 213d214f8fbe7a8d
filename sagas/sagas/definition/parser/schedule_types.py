"""The types of the fields of a schedule: a cron expression, a time zone, and what happens when starts overlap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from sagas.definition.diagnostics import Report
from sagas.definition.model import Overlap
from sagas.definition.parser.field_types import Choice, Duration, Schema, String
from sagas.definition.parser.yaml_nodes import YamlNode
from sagas.errors import did_you_mean
from sagas.schedules.cron import MAX_CRON_LENGTH, CronError, parse_cron
from sagas.schedules.zones import read_zone, zone_names
from sagas.text.printable import printable_line
from sagas.text.shortening import shorten

LEAST_CATCHUP = 10.0
"""Seconds: Temporal's own minimum."""

TERMINATE = "terminate_other"


@dataclass(frozen=True)
class CronExpression:
    """A cron expression, as Temporal's schedules read it."""

    def read(self, node: YamlNode, report: Report) -> str | None:
        text = String().read(node, report)
        if text is None:
            return None
        try:
            cron = parse_cron(text)
        except CronError as error:
            report.add("SAGA134", node, str(error), error.help)
            return None
        if cron.restricts_both_days:
            report.add("SAGA136", node, "starts happen only on days that match the day of the month and of the week")
        return text

    def schema(self) -> Schema:
        return {"type": "string", "minLength": 1, "maxLength": MAX_CRON_LENGTH}


@dataclass(frozen=True)
class TimeZone:
    """The name of a time zone of the IANA database."""

    def read(self, node: YamlNode, report: Report) -> str | None:
        name = String().read(node, report)
        if name is None:
            return None
        try:
            read_zone(name)
        except ValueError:
            close = did_you_mean(name, zone_names()) or "; the names are those of the IANA database"
            report.add("SAGA135", node, f"there is no time zone `{printable_line(shorten(name))}`{close}")
            return None
        return name

    def schema(self) -> Schema:
        return {"type": "string", "minLength": 1}


@dataclass(frozen=True)
class OverlapPolicy:
    """One of Temporal's overlap policies that leave no effects open."""

    def read(self, node: YamlNode, report: Report) -> str | None:
        if node.value == TERMINATE:
            report.add("SAGA137", node, f"`{TERMINATE}` would end a saga without undoing its effects")
            return None
        return Choice(get_args(Overlap)).read(node, report)

    def schema(self) -> Schema:
        return Choice(get_args(Overlap)).schema()


@dataclass(frozen=True)
class CatchupWindow:
    """A duration that Temporal does not lengthen."""

    def read(self, node: YamlNode, report: Report) -> float | None:
        seconds = Duration().read(node, report)
        if seconds is not None and seconds < LEAST_CATCHUP:
            report.add("SAGA109", node, f"Temporal catches up at least {LEAST_CATCHUP:g}s", "write 10s or more")
            return None
        return seconds

    def schema(self) -> Schema:
        return Duration().schema()
