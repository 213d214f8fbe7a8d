"""Credentials of HTTP connections are not sent in plain text: the rule, for every command that reads the settings."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from sagas.errors import UsageError

_SECRET = ("authorization", "proxy-authorization", "cookie")


def refuse_plain_credentials(name: str, url: str, options: Mapping[str, Any]) -> None:
    """Raises UsageError if the connection would send credentials over http:// to another machine."""
    where = f"connections.{name}"
    allowed = options.get("allow_plain_http", False)
    if not isinstance(allowed, bool):
        raise UsageError(f"{where}.allow_plain_http must be true or false")
    if allowed:
        return
    auth, headers = (table if isinstance(table := options.get(key), Mapping) else {} for key in ("auth", "headers"))
    oauth2 = auth.get("oauth2")
    has_credentials = any(kind != "mtls" for kind in auth) or any(str(header).lower() in _SECRET for header in headers)
    targets = {"url": url if has_credentials else ""}
    if isinstance(oauth2, Mapping):
        targets["auth.oauth2.token_url"] = str(oauth2.get("token_url", ""))
    for setting, target in targets.items():
        if _is_plain(target):
            raise UsageError(
                f"{where}.{setting} is http://, so the credentials would be readable on the network; use https://",
                help="allow_plain_http = true sends them anyway, for example where a service mesh encrypts",
            )


def _is_plain(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".")
    except ValueError:
        return False  # reported where the URL is parsed
    if parts.scheme != "http" or host == "localhost" or host.endswith(".localhost"):
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True
