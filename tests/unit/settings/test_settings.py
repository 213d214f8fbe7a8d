from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from sagas.errors import UsageError
from sagas.settings import Secret, load_settings
from sagas.settings.circuit_breaker import CircuitBreaker
from sagas.settings.temporal import Tls

DEV = """
[temporal]
address = "127.0.0.1:28001"
web_ui = "http://127.0.0.1:28002"
namespace = "default"

[connections."shop"]
url = "postgresql+psycopg://postgres:pw@127.0.0.1:28003/shop"
"""


def project(root: Path, text: str = "", dev: str | None = None) -> Path:
    (root / "saga.toml").write_text(text, encoding="utf-8")
    if dev is not None:
        (root / ".saga").mkdir()
        (root / ".saga" / "dev.toml").write_text(dev, encoding="utf-8")
    return root


def test_saga_toml_is_found_upwards(tmp_path: Path) -> None:
    project(tmp_path, 'definitions = ["one", "two"]\nactions = ["shop.actions", "./x.py"]')
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    settings = load_settings(below, env={})
    assert settings.root == tmp_path.resolve()
    assert settings.definitions == (settings.root / "one", settings.root / "two")
    assert settings.actions == ("shop.actions", "./x.py")


def test_no_project_is_needed(tmp_path: Path) -> None:
    settings = load_settings(tmp_path, env={"SAGA_CONNECTIONS__SHOP__URL": "sqlite:///x.db"})
    assert settings.config_file is None
    assert settings.root == tmp_path.resolve()
    assert settings.connection("shop").url == f"sqlite+aiosqlite:///{settings.root}/x.db"


def test_a_folder_in_which_the_stack_runs_is_a_project(tmp_path: Path) -> None:
    (tmp_path / ".saga").mkdir()
    (tmp_path / ".saga" / "dev.toml").write_text(DEV, encoding="utf-8")
    below = tmp_path / "below"
    below.mkdir()
    settings = load_settings(below, env={})
    assert settings.root == tmp_path.resolve()
    assert settings.temporal.address == "127.0.0.1:28001"


def test_config_names_a_file_or_its_folder(tmp_path: Path) -> None:
    project(tmp_path)
    assert load_settings("/", tmp_path / "saga.toml", env={}).root == tmp_path.resolve()
    assert load_settings(tmp_path.parent, tmp_path.name, env={}).root == tmp_path.resolve()
    with pytest.raises(UsageError, match="no settings file"):
        load_settings(tmp_path, "other.toml", env={})


@pytest.mark.parametrize(
    ("written", "env", "address"),
    [
        # no setting: what `dev up` started
        ("", {}, "127.0.0.1:28001"),
        # saga.toml is above dev.toml, TEMPORAL_ above saga.toml, SAGA_ above all
        ('[temporal]\naddress = "file:1"', {}, "file:1"),
        ('[temporal]\naddress = "file:1"', {"TEMPORAL_ADDRESS": "temporal:2"}, "temporal:2"),
        ("", {"TEMPORAL_ADDRESS": "temporal:2", "SAGA_TEMPORAL__ADDRESS": "saga:3"}, "saga:3"),
        # an empty variable is unset
        ("", {"TEMPORAL_ADDRESS": ""}, "127.0.0.1:28001"),
    ],
)
def test_the_order_of_sources(tmp_path: Path, written: str, env: dict[str, str], address: str) -> None:
    project(tmp_path, written, DEV)
    temporal = load_settings(tmp_path, env=env).temporal
    assert temporal.address == address
    assert temporal.embedded == (address == "127.0.0.1:28001")


def test_the_embedded_web_ui_belongs_to_the_embedded_server_only(tmp_path: Path) -> None:
    project(tmp_path, "", DEV)
    assert load_settings(tmp_path, env={}).temporal.web_ui == "http://127.0.0.1:28002"
    assert load_settings(tmp_path, env={"TEMPORAL_ADDRESS": "prod:7233"}).temporal.web_ui is None
    named_again = load_settings(tmp_path, env={"TEMPORAL_ADDRESS": "127.0.0.1:28001"}).temporal
    assert named_again.web_ui == "http://127.0.0.1:28002"


def test_values_of_the_environment(tmp_path: Path) -> None:
    project(tmp_path, '[connections.crm-api]\nkind = "http"\nurl = "https://a"\n[vars]\nlimit = 1')
    env = {
        "SAGA_VARS__LIMIT": "5",
        "SAGA_VARS__NAME": "five",
        "SAGA_DEFINITIONS__X": "",  # would go into a list
        "SAGA_TEMPORAL__NAMESPACE": "123",  # a text, although it looks like a number
        "SAGA_CONNECTIONS__CRM_API__URL": "https://b",  # matches crm-api
        "SAGA_USER": "ann",  # no setting: one underscore
    }
    with pytest.raises(UsageError, match="SAGA_DEFINITIONS__X"):
        load_settings(project(tmp_path, 'definitions = ["x"]'), env=env)
    del env["SAGA_DEFINITIONS__X"]
    project(tmp_path, '[connections.crm-api]\nkind = "http"\nurl = "https://a"\n[vars]\nlimit = 1')
    settings = load_settings(tmp_path, env=env)
    assert settings.vars == {"limit": 5, "name": "five"}
    assert settings.temporal.namespace == "123"
    assert settings.connection("crm-api").url == "https://b"


BROKEN = '[connections.crm]\nkind = "http"\nurl = "https://crm"\ncircuit_breaker = %s'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("definition = []", "saga.toml: unknown setting definition; did you mean definitions?"),
        ("[temporal]\nadress = ''", "unknown setting adress; did you mean address?"),
        ("[temporal.tls]\nserver = 'x'", r"\[temporal.tls\]: unknown setting server"),
        ("[connections.shop]\nulr = 'x'", r"\[connections.shop\]: unknown setting ulr; did you mean url?"),
        ("[connections.shop]\nkind = 'ftp'", "must be sql or http, not ftp"),
        ("[connections.shop]\nurl = 3", "connections.shop.url must be a string"),
        ("[connections.shop]\nurl = {evn = 'X'}", "connections.shop.url must be a string,"),
        ("[connections]\nshop = 'x'", "connections.shop must be a table"),
        ("definitions = 'one'", "definitions must be a list of strings"),
        ("vars = 3", "vars must be a table"),
        ("[temporal]\naddress = 7233", "temporal.address must be a string"),
        ("x = ", "is not valid TOML"),
        (BROKEN % ("{failures = '0%'}"), "connections.crm.circuit_breaker.failures must be a percentage"),
        (BROKEN % ("{failures = 50}"), 'must be a percentage from "1%" to "100%"'),
        (BROKEN % ("{minimum = 0}"), "connections.crm.circuit_breaker.minimum must be"),
        (BROKEN % ("{window = '1ms'}"), "connections.crm.circuit_breaker.window must be"),
        (BROKEN % ("{probes = 1}"), "unknown setting probes"),
        (BROKEN % ("{}"), "connections.crm.circuit_breaker needs a ledger"),
        ("[enqueue]\nsagas = {shop = 'checkout'}", "enqueue.sagas must be a table of lists of strings"),
        ("[enqueue.sagas]\nshop = ['checkout']", "enqueue.sagas names shop, which is not among"),
    ],
)
def test_mistakes_give_a_one_line_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_settings(project(tmp_path, text), env={})


def test_an_unknown_setting_in_the_environment(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"SAGA_TEMPROAL__ADDRESS: .*; did you mean temporal\?"):
        load_settings(tmp_path, env={"SAGA_TEMPROAL__ADDRESS": "x"})


def test_a_binary_settings_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "saga.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not UTF-8"):
        load_settings(tmp_path, env={})


def test_a_connection_without_url_is_on_the_embedded_database(tmp_path: Path) -> None:
    project(tmp_path, "[connections.shop]\n[connections.other]", DEV)
    settings = load_settings(tmp_path, env={})
    assert settings.sql_connection("shop").embedded
    assert settings.connection("shop").url.endswith(":28003/shop")
    with pytest.raises(UsageError, match="the connection other has no url") as raised:
        _ = settings.connection("other").url
    assert "saga dev up" in (raised.value.help or "")
    with pytest.raises(UsageError, match=r"no connection shpo .*; did you mean shop\?"):
        settings.connection("shpo")


def test_secrets_are_read_on_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project(
        tmp_path,
        "[connections.shop]\nurl = {env = 'SHOP_URL'}\n"
        "[connections.lite]\nurl = {file = 'secret'}\n"
        "[temporal]\napi_key = {env = 'KEY'}",
    )
    monkeypatch.delenv("SHOP_URL", raising=False)
    settings = load_settings(tmp_path, env={})
    assert settings.temporal.api_key == Secret("env", "KEY")
    with pytest.raises(UsageError, match="SHOP_URL, which is not set"):
        _ = settings.connection("shop").url
    with pytest.raises(UsageError, match="which failed"):
        _ = settings.connection("lite").url
    monkeypatch.setenv("SHOP_URL", "postgres://u@h/d")
    (tmp_path / "secret").write_text("sqlite:////x/y.db\n", encoding="utf-8")
    assert settings.connection("shop").url == "postgresql+psycopg://u@h/d"
    assert settings.connection("lite").url == "sqlite+aiosqlite:////x/y.db"


def test_tls(tmp_path: Path) -> None:
    assert load_settings(project(tmp_path, "[temporal]\ntls = true"), env={}).temporal.tls is True
    text = "[temporal.tls]\nserver_name = 'a'\nca = 'ca.pem'"
    assert load_settings(project(tmp_path, text), env={}).temporal.tls == Tls(server_name="a", ca="ca.pem")
    with pytest.raises(UsageError, match="tls must be true, false, or a table"):
        load_settings(project(tmp_path, "[temporal]\ntls = 'yes'"), env={})


def test_settings_cannot_be_changed(tmp_path: Path) -> None:
    settings = load_settings(tmp_path, env={})
    with pytest.raises(ValidationError):
        settings.root = tmp_path  # type: ignore[misc]


def test_numbers_among_vars_keep_their_digits(tmp_path: Path) -> None:
    (tmp_path / "saga.toml").write_text(
        "[vars]\nversion = 1.10\nlong = 12345678901234567890.123456789\nwide = 123456789012345678901234567890\n"
    )
    env = {"SAGA_VARS__RATE": "0.10", "SAGA_VARS__CODE": "007", "SAGA_VARS__WIDE": "18446744073709551617"}
    variables = load_settings(tmp_path, env=env).vars
    assert {name: str(value) for name, value in variables.items()} == {
        "version": "1.10",
        "long": "12345678901234567890.123456789",
        "wide": "18446744073709551617",
        "rate": "0.10",
        "code": "007",
    }


@pytest.mark.parametrize("value", ["inf", "nan", "2026-01-01", "1e5000", "1e99999999999999999999"])
def test_what_json_has_no_form_for_is_refused_among_vars(tmp_path: Path, value: str) -> None:
    (tmp_path / "saga.toml").write_text(f"[vars]\na = {value}\n")
    with pytest.raises(UsageError, match=r"vars.a is not a JSON value; write it as a string|has too long a number"):
        load_settings(tmp_path, env={})


def test_a_circuit_breaker_is_off_by_default_and_has_defaults(tmp_path: Path) -> None:
    ledger = '\n[connections.shop]\nurl = "sqlite:///a.db"\n[ledger]\nconnection = "shop"\n'
    settings = load_settings(project(tmp_path, BROKEN % "{}" + ledger), env={})
    assert settings.connection("shop").circuit_breaker is None
    assert settings.connection("crm").circuit_breaker == CircuitBreaker(
        failures=50, minimum=5, window=30.0, probe_every=5.0
    )
