"""Addresses in saga.toml are checked when it is read, so `saga validate` finds them, and `saga doctor` shows each."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from saga_cli import main
from sagas.errors import UsageError
from sagas.settings import load_settings

SECRET = "hunter2"

MISTAKES: dict[str, Callable[[str], str]] = {
    "a space in the host": lambda host: f"h ost{host}",
    "a control character in the host": lambda host: f"h\\u0007ost{host}",
    "a line break in the host": lambda host: f"h\\nost{host}",
    "a zero width space in the host": lambda host: f"h\\u200bost{host}",
    "no host": lambda host: host,
    "a bracket that is not closed": lambda host: f"[::1{host}",
    "no IPv6 address in brackets": lambda host: f"[nonsense]{host}",
    "a port that is not a number": lambda _: "host:abc",
    "a port of other digits": lambda _: "host:١٢",
    "a port above 65535": lambda _: "host:65536",
    "the port 0": lambda _: "host:0",
    "a negative port": lambda _: "host:-1",
    "two ports": lambda _: "host:1:2",
}
"""What is wrong, and `host:port` made wrong from a right port (`:1`)."""

FORMS = {
    "temporal.address": "[temporal]\naddress = '{}'",
    "temporal.web_ui": "[temporal]\nweb_ui = 'https://ada:hunter2@{}/x'",
    "connections.crm.url": "[connections.crm]\nkind = 'http'\nurl = 'https://{}/x'",
    "connections.crm.auth.oauth2.token_url": (
        "[connections.crm]\nkind = 'http'\nurl = 'https://crm'\n[connections.crm.auth.oauth2]\n"
        "client_id = 'a'\nclient_secret = {env = 'X'}\n"
        "token_url = 'https://ada:hunter2@{}/x'"
    ),
    "connections.shop.url": "[connections.shop]\nurl = 'postgresql://ada:hunter2@{}/shop'",
    "connections.my.url": "[connections.my]\nurl = 'mysql+asyncmy://ada:hunter2@{}/shop'",
    "connections.maria.url": "[connections.maria]\nurl = 'mariadb://ada:hunter2@{}/shop'",
    "connections.several.url": "[connections.several]\nurl = 'postgresql://ada:hunter2@/shop?host=a:1&host={}'",
    "kafka.bootstrap_servers": "[kafka]\nbootstrap_servers = 'a:9092,SASL_SSL://{}'",
    "kafka.client.sasl.oauthbearer.token.endpoint.url": (
        "[kafka.client]\n'sasl.oauthbearer.token.endpoint.url' = 'https://ada:hunter2@{}/x'"
    ),
    "spark.master": "[spark]\nmaster = 'spark://a:7077,{}'",
    "spark.remote": "[spark]\nremote = 'sc://{}/;token=hunter2'",
    "catalogs.lake.uri": "[catalogs.lake]\ntype = 'rest'\nuri = 'https://ada:hunter2@{}/x'",
    "catalogs.base.uri": "[catalogs.base]\ntype = 'sql'\nuri = 'postgresql+psycopg://ada:hunter2@{}/x'",
    "catalogs.hive.uri": "[catalogs.hive]\ntype = 'hive'\nuri = 'thrift://a:9083,thrift://{}'",
    "catalogs.s3.s3.endpoint": "[catalogs.s3]\ntype = 'glue'\n's3.endpoint' = 'http://ada:hunter2@{}'",
}
"""Each setting with an address, in a file in which its address is `{}`."""


def load(folder: Path, text: str, env: dict[str, str] | None = None) -> Any:
    (folder / "saga.toml").write_text(f"{text}\n", encoding="utf-8")
    return load_settings(config=str(folder / "saga.toml"), env=env or {})


def with_address(form: str, address: str) -> str:
    """The file with an address, which may have TOML's escapes."""
    *before, line = form.split("\n")
    return "\n".join([*before, re.sub(r"= '(.*)'$", r'= "\1"', line).replace("{}", address)])


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("setting", FORMS)
def test_a_wrong_host_or_port_is_refused_with_its_line(tmp_path: Path, setting: str, mistake: str) -> None:
    text = with_address(FORMS[setting], MISTAKES[mistake](":1"))
    with pytest.raises(UsageError) as refused:
        load(tmp_path, text)
    line = text.count("\n") + 1
    assert refused.value.message.startswith(f"saga.toml:{line}: {setting} must ")
    assert SECRET not in refused.value.message + str(refused.value.help)


@pytest.mark.parametrize(
    "address", ["host:1", "h-o_s.t:65535", "[::1]:1", "[fe80::1%eth0]:1", "${HOST}:${PORT}", "127.0.0.1:1"]
)
@pytest.mark.parametrize("setting", FORMS)
def test_a_right_host_and_port_is_accepted(tmp_path: Path, setting: str, address: str) -> None:
    load(tmp_path, with_address(FORMS[setting], address))


WRONG = [
    (
        '[connections.crm]\nkind = "http"\nurl = "crm.shop/x"',
        'connections.crm.url must be a complete URL such as "https',
    ),
    ('[connections.crm]\nkind = "http"\nurl = "localhost:8080"', "connections.crm.url must be a complete URL"),
    ('[connections.crm]\nkind = "http"\nurl = "ftp://crm.shop"', "connections.crm.url must be a complete URL"),
    ('[connections.crm]\nkind = "http"\nurl = "https:///x"', "connections.crm.url must be a complete URL"),
    ('[connections.crm]\nkind = "http"\nurl = "https://crm.shop/a b"', "connections.crm.url must be a complete URL"),
    ('[connections.crm]\nkind = "http"\nurl = "https://ada:hunter2@crm.shop"', "contains a user or password"),
    ('[connections.crm]\nkind = "http"\nurl = "https://crm.shop?x=1"', "must end before ? and #"),
    ('[connections.shop]\nurl = "shop.db"', "connections.shop.url must have the form postgresql://"),
    ('[connections.shop]\nurl = "postgresql://ada:hunter2"', "its port is not a number from 1 to 65535"),
    ('[connections.shop]\nurl = "postgresql://ada:p@hunter2@db/shop"', "its host is empty, or has"),
    ('[connections.shop]\nurl = "postgresql://ada:hunter2@a:1,b:2/shop"', "its port is not a number"),
    ('[connections.shop]\nurl = "postgresql://ada@/shop?host=a&port=hunter2"', "its port is not a number"),
    ('[connections.shop]\nurl = "postgresql://ada:pa@hunter2/x@db:1/shop"', "is not percent-encoded"),
    ('[connections.shop]\nurl = "postgresql://ada:pa@hunter2?x@db:1/shop"', "is not percent-encoded"),
    ('[connections.shop]\nurl = "mysql://hunter2/x:pa@db/shop"', "is not percent-encoded"),
    ('[connections.shop]\nurl = "sqlite://shop.db"', "must have the form sqlite:///file.db: after two slashes"),
    ('[temporal]\naddress = "http://temporal:7233"', "temporal.address must be host:port: it begins with a protocol"),
    ('[temporal]\naddress = "temporal"', "temporal.address must be host:port: it has no port"),
    ('[temporal]\naddress = "ada:hunter2@temporal:7233"', "temporal.address must be host:port: its port"),
    ('[kafka]\nbootstrap_servers = "broker"', "kafka.bootstrap_servers must be host:port, or several with commas"),
    ('[kafka]\nbootstrap_servers = "a:9092,,b:9092"', "kafka.bootstrap_servers must be host:port"),
    ('[spark]\nmaster = "spark://a"', "spark.master must be local[N], spark://host:7077, yarn or k8s://"),
    ('[spark]\nmaster = "loca[2]"', "spark.master must be local[N]"),
    ('[spark]\nmaster = "k8s://https://h ost:1"', "spark.master must be a complete URL"),
    ('[spark]\nremote = "spark:15002"', "spark.remote must be the address of a Spark Connect server"),
    ('[catalogs.lake]\ntype = "rest"\nuri = "x"', "catalogs.lake.uri must be a complete URL"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_a_wrong_address_is_refused_when_it_is_read(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        load(tmp_path, text)
    assert message in refused.value.message
    assert refused.value.message.startswith(f"saga.toml:{text.count(chr(10)) + 1}: ")
    assert SECRET not in refused.value.message + str(refused.value.help)


RIGHT = [
    '[connections.crm]\nkind = "http"\nurl = "http://[::1]:8080/api/"',
    '[connections.crm]\nkind = "http"\nurl = {env = "CRM_URL"}',
    '[connections.shop]\nurl = "mysql+asyncmy://h/x"',
    '[connections.shop]\nurl = "sqlite:///shop.db"',
    '[connections.shop]\nurl = "sqlite://"',
    '[connections.shop]\nurl = {env = "SHOP_URL"}',
    "[connections.shop]",
    '[connections.shop]\nurl = "postgresql:///shop"',
    '[connections.shop]\nurl = "postgresql://ada@/shop?host=/var/run/postgresql"',
    '[connections.shop]\nurl = "postgresql://ada@/shop?host=@abstract"',
    '[connections.shop]\nurl = "postgresql://ada:p/w @/shop?host=a:5432&host=b:5432"',
    '[connections.shop]\nurl = "postgresql://a,b/shop?target_session_attrs=read-write"',
    '[connections.shop]\nurl = "postgresql://ada@/shop?host=a,b&port=5432,5433"',
    '[connections.shop]\nurl = "postgresql://ada@/shop?host=::1"',
    '[connections.shop]\nurl = "mysql://ada@/shop?unix_socket=/tmp/my.sock"',
    '[connections.shop]\nurl = "mysql://ada:a%40b@h/shop?ssl=true"',
    '[temporal]\naddress = "shop.a1b2.tmprl.cloud:7233"',
    '[kafka]\nbootstrap_servers = "a:9092, SASL_SSL://b.example:9093"',
    "[kafka]",
    *(
        f'[spark]\nmaster = "{master}"'
        for master in ("local", "local[*]", "local[2,3]", "yarn", "local-cluster[2,1,1024]", "k8s://h:6443")
    ),
    '[spark]\nmaster = "k8s://https://kubernetes.default.svc"',
    '[spark]\nremote = "sc://spark"',
    '[spark]\nremote = "sc://spark:15002/;user_id=ada;token=a b"',
    '[catalogs.lake]\ntype = "sql"',
    '[catalogs.lake]\ntype = "sql"\nuri = "sqlite:////tmp/lake.db"',
    '[catalogs.lake]\npy-catalog-impl = "shop.Catalog"\nuri = "anything at all"',
    '[catalogs.lake]\ntype = "glue"\n"s3.endpoint" = "minio:9000"',
]


@pytest.mark.parametrize("text", RIGHT)
def test_a_right_address_is_accepted(tmp_path: Path, text: str) -> None:
    load(tmp_path, text, {"SAGA_KAFKA__BOOTSTRAP_SERVERS": "", "SAGA_SPARK__REMOTE": ""})


@pytest.mark.parametrize(
    ("text", "env", "message"),
    [
        ("", {"SAGA_TEMPORAL__ADDRESS": "h ost:1"}, "SAGA_TEMPORAL__ADDRESS: temporal.address must be host:port"),
        ("", {"TEMPORAL_ADDRESS": "host:0"}, "TEMPORAL_ADDRESS must be host:port"),
        ('[spark]\nmaster = "local"', {"SAGA_SPARK__MASTER": "spark://a"}, "SAGA_SPARK__MASTER: spark.master must"),
        ('spark = {master = "spark://a"}', {}, "saga.toml:1: spark.master must"),
        ('x = 1\nspark.master = "spark://a"', {}, "saga.toml: unknown setting x"),
        (
            '# master\n[spark]\nmemory = """\nmaster = 1\n"""\nmaster = "spark://a"',
            {},
            "saga.toml:6: spark.master must",
        ),
        ('[connections."a.b"]\nurl = "x"', {}, "saga.toml:2: connections.a.b.url must have the form"),
        ("[worker]\n\n[kafka]\nbatch = 0", {}, "saga.toml:4: kafka.batch must be a whole number"),
        ('[kafka]\nretention = "7 days"', {}, "saga.toml:2: kafka.retention: "),
        ('[kafka]\nbootstrap_servers = """\na"""', {}, "saga.toml: kafka.bootstrap_servers must be host:port"),
    ],
)
def test_a_message_names_the_place_of_the_setting(tmp_path: Path, text: str, env: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        load(tmp_path, text, env)
    assert refused.value.message.startswith(message)


def test_validate_refuses_a_wrong_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "saga.toml").write_text('[spark]\nmaster = "spark://h ost:7077"\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main.run(["validate"]) == 1
    assert "saga.toml:2:1 SAGA142 error spark.master must be local[N]" in capsys.readouterr().out


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_address_in_a_secret_is_refused_where_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    address = MISTAKES[mistake](":1").encode().decode("unicode_escape" if "\\" in MISTAKES[mistake]("") else "utf-8")
    monkeypatch.setenv("SHOP_URL", f"postgresql://ada:hunter2@{address}/shop")
    settings = load(tmp_path, '[connections.shop]\nurl = {env = "SHOP_URL"}')
    with pytest.raises(UsageError, match=r"connections\.shop\.url must have the form postgresql://") as refused:
        _ = settings.connections["shop"].url
    assert SECRET not in refused.value.message


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
