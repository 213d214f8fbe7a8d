"""Addresses in saga.toml are checked when it is read, so `saga validate` finds them, and `saga doctor` shows each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from saga_cli import main
from sagas.errors import UsageError
from sagas.settings import load_settings

WRONG = [
    (
        '[connections.crm]\nkind = "http"\nurl = "crm.shop/x"',
        'connections.crm.url must be a complete URL such as "https',
    ),
    ('[connections.crm]\nkind = "http"\nurl = "localhost:8080"', 'not "localhost:8080"'),
    ('[connections.crm]\nkind = "http"\nurl = "ftp://crm.shop"', "connections.crm.url must be a complete URL"),
    ('[connections.crm]\nkind = "http"\nurl = "https:///x"', "connections.crm.url must be a complete URL"),
    ('[connections.crm]\nkind = "http"\nurl = "https://crm.shop:99999"', "connections.crm.url must be a complete URL"),
    ('[connections.crm]\nkind = "http"\nurl = "https://ada:secret@crm.shop"', "contains a user or password"),
    ('[connections.crm]\nkind = "http"\nurl = "https://crm.shop?x=1"', "must end before ? and #"),
    ('[connections.shop]\nurl = "shop.db"', "connections.shop.url must have the form postgresql://"),
    ('[temporal]\naddress = "http://temporal:7233"', 'temporal.address must be host:port, not "http://temporal:7233"'),
    ('[temporal]\naddress = "temporal"', "temporal.address must be host:port"),
    ('[temporal]\naddress = "temporal:70000"', "temporal.address must be host:port"),
    ('[kafka]\nbootstrap_servers = "broker"', "kafka.bootstrap_servers must be host:port, or several with commas"),
    ('[kafka]\nbootstrap_servers = "a:9092,,b:9092"', "kafka.bootstrap_servers must be host:port"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_a_wrong_address_is_refused_when_it_is_read(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "saga.toml").write_text(f"{text}\n", encoding="utf-8")
    with pytest.raises(UsageError) as refused:
        load_settings(config=str(tmp_path / "saga.toml"))
    assert message in refused.value.message
    assert "secret@" not in refused.value.message


RIGHT = [
    '[connections.crm]\nkind = "http"\nurl = "http://[::1]:8080/api/"',
    '[connections.shop]\nurl = "mysql+asyncmy://h/x"',
    '[connections.shop]\nurl = "sqlite:///shop.db"',
    '[temporal]\naddress = "[::1]:7233"',
    '[temporal]\naddress = "shop.a1b2.tmprl.cloud:7233"',
    '[kafka]\nbootstrap_servers = "a:9092, SASL_SSL://b.example:9093"',
]


@pytest.mark.parametrize("text", RIGHT)
def test_a_right_address_is_accepted(tmp_path: Path, text: str) -> None:
    (tmp_path / "saga.toml").write_text(f"{text}\n", encoding="utf-8")
    load_settings(config=str(tmp_path / "saga.toml"))


def test_doctor_shows_each_http_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"right": '"https://crm.shop"', "wrong": '{env = "WRONG_URL"}', "absent": '{env = "ABSENT_URL"}'}
    tables = "".join(f'[connections.{name}]\nkind = "http"\nurl = {url}\n' for name, url in names.items())
    (tmp_path / "saga.toml").write_text(tables, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WRONG_URL", "crm.shop")
    main.run(["doctor", "--json"])
    lines: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    shown = {line["check"]: (line["ok"], line["message"]) for line in lines if line["check"].startswith("connection")}
    assert {check: ok for check, (ok, _) in shown.items()} == {
        "connection right": True,
        "connection wrong": False,
        "connection absent": None,
    }
    assert "must be a complete URL" in shown["connection wrong"][1]
    assert "ABSENT_URL" in shown["connection absent"][1]
