"""TLS to the Temporal server, and tokens of `saga serve`: mistakes name their settings."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from saga_workers.serve.api_tokens import Callers
from saga_workers.temporal.temporal_client import connect_options, server_down_error
from sagas.errors import UsageError
from sagas.settings import Settings, load_settings


def settings(folder: Path, text: str) -> Settings:
    (folder / "saga.toml").write_text(text)
    return load_settings(folder, env={})


@pytest.mark.parametrize(
    ("tls", "message"),
    [
        ('cert = "saga.toml"', "temporal.tls.cert and temporal.tls.key belong together"),
        ('ca = "saga.toml"', "temporal.tls.ca: saga.toml is not a PEM file"),
        ('ca = "/dev/zero"', "temporal.tls.ca: /dev/zero cannot be read: it is a pipe or a device"),
    ],
)
def test_a_mistake_in_a_tls_file_names_the_setting(tmp_path: Path, tls: str, message: str) -> None:
    actual_settings = settings(tmp_path, f'[temporal]\naddress = "h:1"\n[temporal.tls]\n{tls}\n')
    with pytest.raises(UsageError, match=message):
        connect_options(actual_settings, env={})


def test_a_server_that_does_not_answer_with_tls_is_reported_as_such(tmp_path: Path) -> None:
    actual_settings = settings(tmp_path, '[temporal]\naddress = "127.0.0.1:7233"\ntls = true\n')
    error = server_down_error(actual_settings, "127.0.0.1:7233", RuntimeError("transport error"))
    assert error.message == "no Temporal server answers at 127.0.0.1:7233 with TLS"
    assert "tls and api_key under [temporal]" in (error.help or "")


@pytest.mark.parametrize(("token", "warned"), [("x" * 15, True), ("x" * 16, False)])
def test_a_short_token_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture, token: str, warned: bool) -> None:
    (tmp_path / "token").write_text(token)
    with caplog.at_level(logging.WARNING):
        Callers(settings(tmp_path, '[serve]\ntoken = {file = "token"}\n'))
    assert ("serve.token has fewer than 16 characters" in caplog.text) is warned
    assert token not in caplog.text
