"""Credentials over http:// are refused when the settings are read, unless the other end is this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sagas.errors import UsageError
from sagas.settings import load_settings

BEARER = {"bearer": {"env": "CRM_TOKEN"}}
OAUTH2 = {"oauth2": {"token_url": "http://login.shop/token", "client_id": "a", "client_secret": {"env": "B"}}}


def load(folder: Path, url: str, **options: Any) -> None:
    (folder / "saga.toml").write_text(f'[connections.crm]\nkind = "http"\nurl = "{url}"\n')
    env = {f"SAGA_CONNECTIONS__CRM__{name.upper()}": json.dumps(value) for name, value in options.items()}
    load_settings(folder, env=env)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("http://shop:8080", {"auth": BEARER}),
        ("http://10.0.0.7", {"auth": {"basic": {"user": "a", "password": {"env": "B"}}}}),
        ("http://127.0.0.1.shop", {"auth": BEARER}),
        ("https://crm.shop", {"auth": OAUTH2}),
        ("http://shop", {"headers": {"Authorization": "Basic YTpi"}}),
        ("http://shop", {"auth": BEARER, "allow_plain_http": False}),
    ],
)
def test_credentials_are_not_sent_in_plain_text(tmp_path: Path, url: str, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="is http://, so the credentials would be readable on the network") as refused:
        load(tmp_path, url, **options)
    assert "allow_plain_http = true" in (refused.value.help or "")


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("http://shop:8080", {}),
        ("http://shop:8080", {"headers": {"accept": "text/csv"}}),
        ("http://shop:8080", {"auth": BEARER, "allow_plain_http": True}),
        ("https://crm.shop", {"auth": BEARER}),
        ("http://127.0.0.1:8080", {"auth": BEARER}),
        ("http://[::1]:8080", {"auth": BEARER}),
        ("http://localhost", {"auth": BEARER}),
    ],
)
def test_other_connections_are_accepted(tmp_path: Path, url: str, options: dict[str, Any]) -> None:
    load(tmp_path, url, **options)
