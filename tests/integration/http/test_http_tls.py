"""TLS and mutual TLS against a real server, with certificates made here by the openssl command."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.payment_server import PaymentServer
from tests.integration.http.charges import call

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command is not installed")

EXTENSIONS = """basicConstraints=CA:FALSE
keyUsage=digitalSignature
subjectAltName=IP:127.0.0.1
authorityKeyIdentifier=keyid,issuer
"""


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.pem, and server and client certificates signed by it; client-locked.key has the password `opensesame`."""
    folder = tmp_path_factory.mktemp("certificates")
    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    (folder / "leaf.ext").write_text(EXTENSIONS)
    ca = ("-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test-ca", "-days", "2")
    openssl(folder, "req", "-x509", *new, *ca, "-addext", "keyUsage=keyCertSign")
    for name in ("server", "client"):
        openssl(folder, "req", *new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "leaf.ext")
        openssl(folder, "x509", "-req", "-in", f"{name}.csr", *signing, "-out", f"{name}.pem")
    locked = ("-in", "client.key", "-aes256", "-passout", "pass:opensesame", "-out", "client-locked.key")
    openssl(folder, "pkey", *locked)
    return folder


def serve(certificates: Path, *options: str) -> PaymentServer:
    context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    context.load_cert_chain(certificates / "client.pem", certificates / "client.key")
    names = ("--cert", str(certificates / "server.pem"), "--key", str(certificates / "server.key"))
    return PaymentServer(*names, *options, scheme="https", context=context)


async def test_a_private_authority_is_named_by_verify(certificates: Path, connect: Any) -> None:
    with serve(certificates) as server:
        assert (await call(connect(server.url, verify=str(certificates / "ca.pem")))).kind == "done"
        stranger = await call(connect(server.url))
        assert stranger.kind == "failed"
        assert stranger.failure is not None
        assert "certificate verify failed" in stranger.failure.message.lower()
        assert len(server.ledger()["charges"]) == 1


async def test_mutual_tls(certificates: Path, connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_PASSWORD", "opensesame")
    verify = str(certificates / "ca.pem")
    plain = {"certificate": str(certificates / "client.pem"), "key": str(certificates / "client.key")}
    locked = {**plain, "key": {"file": str(certificates / "client-locked.key")}, "password": {"env": "KEY_PASSWORD"}}
    with serve(certificates, "--client-ca", verify) as server:
        assert (await call(connect(server.url, verify=verify, auth={"mtls": plain}))).kind == "done"
        assert (await call(connect(server.url, verify=verify, auth={"mtls": locked}), attempt=2)).kind == "done"
        # With TLS 1.3 a client learns of its refusal only after sending its request.
        anonymous = await call(connect(server.url, verify=verify), key="checkout-2/charge")
        assert anonymous.kind in ("failed", "unknown")
        assert len(server.ledger()["charges"]) == 1


@pytest.mark.parametrize(
    ("mtls", "message"),
    [
        ({"certificate": "client.pem", "key": "nowhere.key"}, "cannot be used"),
        ({"certificate": "client.pem", "key": "server.key"}, "cannot be used"),
        ({"certificate": "client.pem", "key": "client-locked.key"}, "cannot be used"),
        ({"certificate": "client.pem", "key": "client.key", "password": {"env": "NO_SUCH_SECRET"}}, "NO_SUCH_SECRET"),
    ],
)
async def test_unusable_files_send_nothing(
    certificates: Path, connect: Any, mtls: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_SUCH_SECRET", raising=False)
    paths = {name: str(certificates / value) if isinstance(value, str) else value for name, value in mtls.items()}
    with serve(certificates) as server:
        outcome = await call(connect(server.url, verify=str(certificates / "ca.pem"), auth={"mtls": paths}))
        assert (outcome.kind, outcome.retryable) == ("failed", True)
        assert outcome.failure is not None
        assert message in outcome.failure.message
        assert server.ledger()["requests"] == []
