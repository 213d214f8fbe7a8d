"""A secret in any setting is in nothing that is printed, logged or stored in a failure."""

from __future__ import annotations

import io
import json
import logging
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import pytest

from saga_activities.http.settings import http_settings
from saga_activities.temporal.attempt_errors import to_application_error
from saga_cli.main import run
from saga_workers.doctor.doctor_result import DoctorResult
from saga_workers.runtime.logs import configure_logs
from sagas.protocol.outcomes import Failure, Outcome
from sagas.settings import HttpService, load_settings, masking
from sagas.settings.codec import load_codec_keys
from sagas.settings.masking import is_secret_name, mask, mask_properties
from sagas.settings.table import example_of, form_of, keys
from sagas.text.printable import MASK
from tests.unit.settings.reference_page import TABLES

CANARY = "canary-7d1f"
SAGA = "saga: a\nsteps:\n  - id: s\n    uses: wait\n    with: {signal: x}\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql+psycopg://shop:s3cr%40t@db:5432/shop", f"postgresql+psycopg://shop:{MASK}@db:5432/shop"),
        ("https://user:pa:s@w@crm.shop/a?b=c@d", f"https://user:{MASK}@crm.shop/a?b=c@d"),
        ("http://127.0.0.1:8233/workflows/a@b", "http://127.0.0.1:8233/workflows/a@b"),
        ("postgresql://db/a?user=b&password=x1&sslpassword=y2", f"postgresql://db/a?user=b&password={MASK}&sslpassword={MASK}"),
        ("FATAL: host=db user=shop password=geheim port=5432", f"FATAL: host=db user=shop password={MASK} port=5432"),
        ("{'s3.secret-access-key': 'abc', 'type': 'rest'}", f"{{'s3.secret-access-key': '{MASK}', 'type': 'rest'}}"),
        ('{"token":"abc def"}', f'{{"token":"{MASK}"}}'),
        ('Login required username="u" password="p w";', f'Login required username="u" password="{MASK}";'),
        ("sasl.password=abc", f"sasl.password={MASK}"),
        ("DefaultEndpointsProtocol=https;AccountKey=abc==;", f"DefaultEndpointsProtocol=https;AccountKey={MASK};"),
        ("authorization: Bearer abcdefghij", f"authorization: Bearer {MASK}"),
        ("password authentication failed for user shop", "password authentication failed for user shop"),
        ("the token endpoint responded 401 Unauthorized", "the token endpoint responded 401 Unauthorized"),
        ("http://127.0.0.1:8233/namespaces/default", "http://127.0.0.1:8233/namespaces/default"),
        ("saga resolve order-1 charge retry --reason '…'", "saga resolve order-1 charge retry --reason '…'"),
    ],
)  # fmt: skip
def test_credentials_are_masked_by_their_form(text: str, shown: str) -> None:
    assert mask(text) == shown


@pytest.mark.parametrize(
    "part",
    [
        "x",
        "a.",
        "pass",
        "pass ",
        "pass=' ",
        " ",
        "=",
        "'pass':",
        "key_",
        "token='",
        "://",
        "://a:",
        "Basic ",
        "a@",
        "x-",
    ],
)
def test_masking_takes_linear_time(part: str) -> None:
    """The text is a participant's or a caller's: eight times as much takes about eight times as long, not 64 times."""

    def seconds(length: int) -> float:
        text = part * (length // len(part))
        begin = time.process_time()
        mask(text)
        return time.process_time() - begin

    short = min(seconds(8_000) for _ in range(3))
    assert min(seconds(64_000) for _ in range(3)) < 24 * max(short, 0.001)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "sasl.password",
            "ssl.key.pem",
            "s3.secret-access-key",
            "fs.s3a.secret.key",
            "credential",
            "token",
            "api_key",
        ),
        *(
            "sasl.jaas.config",
            "ssl.keystore.password",
            "signing_secret",
            "adls.account-key",
            "x-api-key",
            "Authorization",
        ),
    ],
)
def test_a_property_with_a_telling_name_is_masked(name: str) -> None:
    assert is_secret_name(name)
    assert mask_properties({"a": {name: "x"}}) == {"a": {name: MASK}}


@pytest.mark.parametrize("name", ["type", "uri", "token_url", "s3.access-key-id", "idempotency", "key", "warehouse"])
def test_other_properties_stay(name: str) -> None:
    assert mask_properties({name: "public"}) == {name: "public"}


def plant(canaries: list[str], env: dict[str, str]) -> str:
    """A saga.toml with a secret in every setting that can hold one."""

    def canary() -> str:
        canaries.append(f"{CANARY}-{len(canaries)}")
        return canaries[-1]

    def secret_of(setting_type: str) -> str:
        if "string" in setting_type:
            return json.dumps(canary())
        env[f"CANARY_{len(canaries)}"] = ""
        name = f"CANARY_{len(canaries)}"
        env[name] = canary()
        return f'{{env = "{name}"}}'

    lines: list[str] = []
    for table in TABLES:
        if not table.heading or table.heading in ("reconcile", "reconcile.effects", "codec"):  # its keys are no words
            continue
        lines.append(f"[{table.heading}]")
        for name, field in keys(table):
            match name:
                case "kind":
                    lines.append(f"kind = {example_of(field)}")
                case "url" if "crm" in table.heading:
                    lines.append('url = "https://127.0.0.1:1/x"')  # one with credentials is refused
                case "url":
                    lines.append(f'url = "postgresql://user:{canary()}@127.0.0.1:1/x?sslpassword={canary()}"')
                case "client":
                    lines.append(f'client = {{"sasl.password" = "{canary()}", "ssl.key.pem" = "{canary()}"}}')
                case "conf":
                    lines.append(f'conf = {{"spark.hadoop.fs.s3a.secret.key" = "{canary()}"}}')
                case "bootstrap_servers" | "address":
                    lines.append(f'{name} = "127.0.0.1:1"')
                case "headers":
                    lines.append(f'headers = {{"x-api-key" = "{canary()}"}}')
                case "web_ui":
                    lines.append(f'web_ui = "https://user:{canary()}@127.0.0.1:1"')
                case "remote":
                    lines.append(f'remote = "sc://127.0.0.1:1/;token={canary()}"')
                case _ if "secret" in (type := form_of(field).type):
                    lines.append(f"{name} = {secret_of(type)}")
    lines += ["[catalogs.lake]", 'type = "rest"', f'uri = "https://u:{canary()}@127.0.0.1:1"']
    lines += [f'{name} = "{canary()}"' for name in ("credential", "token", '"s3.secret-access-key"')]
    lines += ["[vars]", f'api_token = "{canary()}"']
    return "\n".join(lines) + "\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[str]]:
    canaries: list[str] = []
    env: dict[str, str] = {}
    (tmp_path / "saga.toml").write_text(plant(canaries, env))
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "definitions").mkdir()
    (tmp_path / "definitions" / "a.saga.yaml").write_text(
        "saga: a\nsteps:\n  - id: s\n    uses: wait\n    with: {signal: x}\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path, canaries


def resolved(settings: Any) -> Any:
    """Read every secret, as a process does before it connects."""
    for connection in settings.connections.values():
        assert connection.url
        if isinstance(connection, HttpService):
            secret = http_settings(connection).signing_secret
            assert secret is not None
            assert secret.resolve()
    assert settings.kafka.client_properties()
    return settings


def test_keys_of_the_codec_are_masked(tmp_path: Path) -> None:
    first, second = "ab" * 32, "cd" * 32
    load_codec_keys(f"{first} {second}", tmp_path)
    assert mask(f"{first} and {second}") == "••• and •••"


def test_no_text_quotes_a_secret_of_the_settings(project: tuple[Path, list[str]]) -> None:
    folder, canaries = project
    settings = resolved(load_settings(folder))
    assert len(canaries) > 10
    assert CANARY not in repr(settings)
    from saga_workers.serve.api_tokens import Callers

    Callers(settings)
    for canary in canaries:
        assert canary not in mask(f"the server quotes {canary} in its message, and ({canary})"), canary


def test_logs_failures_and_results_of_doctor_quote_no_secret(project: tuple[Path, list[str]]) -> None:
    folder, canaries = project
    resolved(load_settings(folder))
    quoted = ", ".join(canaries[:3])
    failure = to_application_error(Outcome("unknown", failure=Failure("X", quoted, {"dsn": quoted})), 1)
    doctor = DoctorResult("database", False, quoted, quoted).to_json()
    assert CANARY not in f"{failure} {failure.details} {doctor}"
    for format in ("text", "json"):
        shown, root = io.StringIO(), logging.getLogger()
        before, stderr = (root.handlers[:], root.level), sys.stderr
        try:
            sys.stderr = shown
            configure_logs(format)  # pyright: ignore[reportArgumentType]
            try:
                raise ConnectionError(quoted)
            except ConnectionError:
                logging.getLogger("saga").exception("lost: %s", quoted, extra={"context": {"dsn": quoted}})
        finally:
            sys.stderr = stderr
            root.handlers[:], root.level = before
        assert "lost" in shown.getvalue()
        assert CANARY not in shown.getvalue()


@pytest.mark.sampled(keep=4)
@pytest.mark.parametrize(
    "words",
    [
        ("validate",),
        ("explain", "a"),
        ("dev", "status"),
        ("dev", "status", "--reveal"),
        ("dev", "status", "-o", "json"),
        ("list",),
        ("list", "--debug"),
        ("doctor",),
        ("setup", "--print"),
        ("relay", "--status"),
    ],
    ids=" ".join,
)
def test_commands_with_unreachable_servers_print_no_secret(
    project: tuple[Path, list[str]], capfd: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    run(list(words))
    shown = "".join(capfd.readouterr())
    assert shown.strip()
    assert CANARY not in shown


def test_a_traceback_names_no_secret(project: tuple[Path, list[str]]) -> None:
    _, canaries = project
    resolved(load_settings())
    try:
        raise ValueError(f"dsn {canaries[0]}")
    except ValueError:
        assert CANARY not in mask(traceback.format_exc())


@pytest.mark.parametrize("help", ['secret = { env = "SHOP_TOKEN" }', 'token = {file = "token.txt"} in saga.toml'])
def test_a_reference_to_a_secret_is_shown(help: str) -> None:
    assert mask(help) == help


def test_what_is_masked_by_its_form_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "_known", set[str]())
    monkeypatch.setattr(masking, "_pattern", None)
    for secret in ("blue5", "green6"):
        masking.remember_secret(secret)
    masking.remember_url("postgresql://saga:saga@db/shop")
    assert mask("blue5, 'green6', xgreen6, saga") == f"blue5, '{MASK}', xgreen6, saga"
    assert mask("password=blue5 postgresql://shop:blue5@db/shop postgresql://saga:saga@db/shop") == (
        f"password={MASK} postgresql://shop:{MASK}@db/shop postgresql://saga:{MASK}@db/shop"
    )
