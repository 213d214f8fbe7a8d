"""The pages of the console as Jinja2 templates, in the frame and with the style sheet of the HTML reports."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from saga_workers.serve.console.words import (
    ANSWER_WORDS,
    DECISION_WORDS,
    EVENT_WORDS,
    EVIDENCE_WORDS,
    FIELD_LABELS,
    OPERATION_WORDS,
    PAUSED,
    REQUEST_MEANINGS,
    REQUEST_WORDS,
    STATE_WORDS,
    in_form_words,
)
from saga_workers.serve.console_path import ROOT
from sagas.presentation.html_page import STYLE_SHEET, served_page
from sagas.presentation.styled_text import format_duration, local_time, parse_timestamp
from sagas.presentation.web_ui_text import STATE_SYMBOLS
from sagas.protocol.size_limits import is_omitted, measure
from sagas.text.exact_json import readable_json
from sagas.text.printable import printable, printable_line
from sagas.text.shortening import counted, shorten, shorten_middle

STYLE_PATH = f"{ROOT}/style.css"
ICON_PATH = f"{ROOT}/icon.svg"
ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="16" height="16" rx="4" fill="#0b62c4"/>'
    '<path d="M4 6h7M9 4l2 2-2 2M12 10H5M7 8l-2 2 2 2" fill="none" stroke="#fff" stroke-width="1.5"/></svg>'
)
_FOLDER = Path(__file__).parent / "templates"
_LONGEST = 300
"""Characters of a text that somebody else has written."""

_LONGEST_JSON = 20_000
"""Characters of the input of a saga, or of the arguments of a call."""


def style_sheet() -> str:
    """The style sheet of all HTML of this product, and what only the console has."""
    return STYLE_SHEET + _ENVIRONMENT.get_template("console.css").render()


def render(template: str, title: str, **values: Any) -> str:
    """A page. All values are escaped, whatever they have."""
    body = _ENVIRONMENT.get_template(template).render(title=title, zone=_zone(), **values)
    return served_page(f"{title} · saga", body, style_sheet=STYLE_PATH, icon=ICON_PATH)


def saga_path(saga_id: str, page: str = "") -> str:
    """The address of a page about a saga. A slash in the id is encoded."""
    return f"{ROOT}/sagas/{quote(saga_id, safe='')}{page}"


def decision_path(saga_id: str, step: str, decision: str) -> str:
    """The address of the page on which a person decides about a parked step."""
    return saga_path(saga_id, f"/resolve?{urlencode({'step': step, 'decision': decision})}")


def inbox_path(asked: Mapping[str, str], page: str = "", **more: str) -> str:
    """The address of the inbox, or of a page below it, for the sagas of a search; ``more``: other parameters."""
    given = urlencode({name: value for name, value in {**asked, **more}.items() if value})
    return f"{ROOT}/inbox{page}" + (f"?{given}" if given else "")


def signal_path(saga_id: str, name: str) -> str:
    """The address of the page on which a person sends a signal."""
    return saga_path(saga_id, f"/signal?{urlencode({'name': name})}")


def batch_path(batch: str) -> str:
    return f"{ROOT}/batches/{quote(batch, safe='')}"


def _short(text: object, limit: int = _LONGEST) -> str:
    return shorten(printable_line(str(text)), limit)


def _pretty_json(value: object) -> str:
    """A value as JSON on several lines; of a long one the beginning and the end."""
    if is_omitted(value) and isinstance(value, dict) and "bytes" in value:
        return f"too large for the view of the saga: {measure(value)}"
    return shorten_middle(printable(readable_json(value, indent=2)), _LONGEST_JSON)


def _sentence(message: str) -> str:
    """A message as a sentence of its own."""
    return message[:1].upper() + message[1:] + ("" if message.endswith((".", "!", "?")) else ".")


def _moment(timestamp: str | float | None) -> Markup:
    """A time for people and for programs; empty if there is none."""
    at = datetime.fromtimestamp(timestamp, UTC) if isinstance(timestamp, float | int) else parse_timestamp(timestamp)
    if at is None:
        return Markup()
    return Markup('<time datetime="{}">{}</time>').format(at.isoformat(), local_time(at))


def _ago(timestamp: str | None) -> str:
    at = parse_timestamp(timestamp)
    return "" if at is None else f"{format_duration(datetime.now(UTC), at)} ago"


def _lasted(end: str | None, begin: str | None) -> str:
    """How long something took, until now if it has not ended."""
    started = parse_timestamp(begin)
    return "" if started is None else format_duration(parse_timestamp(end) or datetime.now(UTC), started)


def _state_badge(state: str) -> Markup:
    words = STATE_WORDS.get(state)
    text = f"{words.symbol} {words.title}" if words else state
    return Markup('<span class="state {}" title="{}">{}</span>').format(state, state, text)


def _zone() -> str:
    return "UTC" + datetime.now().astimezone().isoformat()[-6:]


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: Mapping[str, Any] = {
        "short": _short,
        "sentence": _sentence,
        "in_form_words": in_form_words,
        "pretty_json": _pretty_json,
        "moment": _moment,
        "ago": _ago,
        "saga_path": saga_path,
        "batch_path": batch_path,
        "state_badge": _state_badge,
    }
    environment.filters.update(filters)
    environment.globals.update(
        {
            "root": ROOT,
            "counted": counted,
            "decision_path": decision_path,
            "inbox_path": inbox_path,
            "signal_path": signal_path,
            "lasted": _lasted,
            "escape": escape,
            "state_words": STATE_WORDS,
            "answer_words": ANSWER_WORDS,
            "decision_words": DECISION_WORDS,
            "request_words": REQUEST_WORDS,
            "request_meanings": REQUEST_MEANINGS,
            "evidence_words": EVIDENCE_WORDS,
            "operation_words": OPERATION_WORDS,
            "event_words": EVENT_WORDS,
            "labels": FIELD_LABELS,
            "symbols": {**STATE_SYMBOLS, "PARKED": PAUSED},
            "paused": PAUSED,
        }
    )
    return environment


_ENVIRONMENT = _environment()
