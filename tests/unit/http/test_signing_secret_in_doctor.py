"""`saga doctor` and the secrets with which HTTP connections sign."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from saga_cli import main

SETTINGS = """
[connections.hook]
kind = "http"
url = "https://shop.example.com"
signing_secret = {env = "HOOK_SECRET"}
"""


@pytest.mark.parametrize(
    ("secret", "ok", "message"),
    [
        ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", True, "signs with a secret of 24 bytes"),
        ("whsec_c2VjcmV0", False, "connections.hook.signing_secret is a secret of 6 bytes, which can be guessed; use"),
        ("whsec_A", False, "connections.hook.signing_secret is not a Standard Webhooks secret"),
        ("", False, "connections.hook.signing_secret is empty"),
        (None, None, "connections.hook.signing_secret reads the environment variable HOOK_SECRET, which is not set"),
    ],
)
def test_doctor_checks_signing_secrets(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    secret: str | None,
    ok: bool | None,
    message: str,
) -> None:
    (tmp_path / "saga.toml").write_text(SETTINGS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOOK_SECRET", raising=False)
    if secret is not None:
        monkeypatch.setenv("HOOK_SECRET", secret)
    main.run(["doctor", "--json"])
    lines: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    [line] = [line for line in lines if line["check"] == "connection hook"]
    assert line["ok"] is ok
    assert line["message"].startswith(message)
    assert not secret or secret not in json.dumps(lines)
