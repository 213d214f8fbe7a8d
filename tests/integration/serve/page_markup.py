"""Looks for markup in a page of the console that no value may bring in."""

from __future__ import annotations

from html.parser import HTMLParser

METAS = ([("charset", "utf-8")], [("name", "viewport")])


def unwanted_markup(page: str) -> list[str]:
    """The elements and attributes that run or load something, or lead away from the console."""
    unwanted: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag in ("script", "style", "iframe", "object", "base", "meta") and attrs[:1] not in METAS:
                unwanted.append(tag)
            for name, value in attrs:
                leads_away = name in ("href", "src", "action") and not (value or "").startswith(("/console", "#"))
                if name.startswith("on") or name in ("style", "formaction", "srcdoc") or leads_away:
                    unwanted.append(f"{tag} {name}={value}")

    Reader().feed(page)
    return unwanted
