"""Hostile settings give one sentence, in bounded time: never a traceback."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from saga_activities.http.settings import http_settings
from saga_spark.reconcile.reconcile_spec import effect_tables
from saga_spark.settings import spark_settings
from sagas.errors import UsageError
from sagas.settings import HttpService, load_settings
from sagas.settings.table import keys
from tests.helpers.sampling import examples
from tests.unit.settings.reference_page import TABLES, complete_file

LONGEST = 5.0
"""Seconds that one file may take on a busy machine."""

CORPUS = [
    b"",
    b"\xff\xfe\x00",
    b"\xef\xbb\xbfdefinitions = []",
    b"a" * 100_000,
    b"x = " + b"[" * 100_000,
    b"x = " + b"{a=" * 50_000,
    b"vars = {x = " + b"[" * 300 + b"]" * 300 + b"}",
    b".".join([b"vars"] + [b"a"] * 20_000) + b" = 1",
    b"[" + b".".join([b"vars"] + [b"a"] * 20_000) + b"]",
    b"vars = {x = 0x" + b"f" * 10_000 + b"}",
    b"[kafka]\nbatch = 0x" + b"f" * 10_000,
    b"[kafka]\nbatch = " + b"9" * 10_000,
    b"[kafka]\nretention = '" + b"9" * 400 + b"d'",
    b"[spark]\nretention = '" + b"9" * 400 + b"d'",
    b"definitions = ['\\u0000']".replace(b"'", b'"'),
    b'actions = ["./\\u0000.py"]',
    b'[connections."\\u0000"]\nurl = "x"',
    b"[connections.x]\nkind = ['http']",
    b"[connections.x]\nkind = {}",
    b"[connections.x]\nkind = 'http'\nurl = 'http://['",
    b"[connections.x]\nkind = 'http'\nurl = 'https://a:99999999'",
    b"[connections.x]\nkind = 'http'\nurl = 'https://a'\nauth = {oauth2 = {token_url = 'http://['}}",
    b"[connections.x]\nurl = 'sqlite:///\\u0000'".replace(b"'", b'"'),
    b"[[connections]]\nurl = 'x'",
    b"[[kafka]]",
    b"temporal = 1979-05-27",
    b"[[temporal.tls]]",
    b"[spark]\nstage = 'file://['",
    b"[spark]\nstage = 'http://['",
    b"[spark]\nremote = 1",
    b"[catalogs]\nlake = [1]",
    b"[catalogs.lake]\ntype = ['sql']",
    b"[[reconcile.effects]]\ntable = 'x'\nkey = [[1]]\nconnection = 'x'",
    b"[[reconcile.effects]]\nname = {}\ntable = 5",
    b"[reconcile]\neffects = 5",
    b"[kafka.client]\na = {env = 5}",
    b'[kafka.client]\n"" = {"" = [[]]}',
]


def everything(root: Path, content: bytes, env: Mapping[str, str]) -> None:
    """Load the file and all that is made of it; a UsageError is a fine answer, anything else is not."""
    (root / "saga.toml").write_bytes(content)
    started = time.thread_time()
    loaded = refused = None
    try:
        loaded = load_settings(root, env=env)
    except UsageError as error:
        refused = error.message
    if refused is not None:
        assert "\n" not in refused
        assert len(refused) < 2_000
    if loaded is not None:
        for read in (spark_settings, effect_tables):
            with contextlib.suppress(UsageError):
                read(loaded)
        for connection in loaded.connections.values():
            with contextlib.suppress(UsageError):
                connection.url  # noqa: B018
                if isinstance(connection, HttpService):
                    http_settings(connection)
                else:
                    _ = connection.schema_file
        with contextlib.suppress(UsageError):
            loaded.kafka.client_properties()
    assert time.thread_time() - started < LONGEST


def test_the_corpus(tmp_path: Path) -> None:
    for content in CORPUS:
        everything(tmp_path, content, {})


def test_a_message_is_short_whatever_is_written(tmp_path: Path) -> None:
    everything(tmp_path, b"x" * 100_000 + b" = 1", {})
    everything(tmp_path, b"", {"SAGA_KAFKA__RETENTION": "[" * 100_000})


def test_a_large_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "saga.toml").write_bytes(b"#" * (2 << 20))
    with pytest.raises(UsageError, match="larger than"):
        load_settings(tmp_path, env={})


def test_settings_that_are_no_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "saga.toml").mkdir()
    for config in (None, "saga.toml", "."):
        with pytest.raises(UsageError, match=r"saga\.toml cannot be read: Is a directory"):
            load_settings(tmp_path, config, env={})
    os.mkfifo(tmp_path / "pipe")
    for config, message in (("pipe", "it is a pipe or a device"), ("x" * 5_000, "there is no settings file")):
        with pytest.raises(UsageError, match=message):
            load_settings(tmp_path, config, env={})


VALUES = st.sampled_from(
    [
        "",
        "0",
        "-1",
        "true",
        "null",
        "NaN",
        "[]",
        "[[]]",
        "{}",
        '{"env": "X"}',
        '{"file": "."}',
        "x",
        "\0",
        "é",
        "\udcff",
        "[" * 5_000,
        "9" * 5_000,
        "1e999",
        "file:///",
        "sqlite://",
        "http://[",
        "30s",
        '"a"',
        "1979-05-27",
        "../..",
        "*",
    ]
)
KEYS = [f"{table.heading}.{name}".strip(".") for table in TABLES for name, _ in keys(table)]
NAMES = st.sampled_from(KEYS).map(lambda key: "SAGA_" + key.replace(".", "__").upper())
HOSTILE_NAMES = st.sampled_from(
    [
        "SAGA___",
        "SAGA___X",
        "SAGA_VARS__",
        "SAGA_CONNECTIONS____URL",
        "SAGA_TEMPORAL__ADDRESS__X",
        "SAGA_A__B",
        "SAGA_VARS" + "__A" * 5_000,
        "SAGA_KAFKA__CLIENT__X__Y",
        "SAGA_CATALOGS__LAKE",
        "SAGA_É__B",
    ]
)
ENVIRONMENT = st.dictionaries(NAMES | HOSTILE_NAMES, VALUES, max_size=4)

REAL = complete_file().encode()


@st.composite
def mutated(draw: Any) -> bytes:
    """A real file with lines removed, repeated, exchanged, or with other values."""
    lines = REAL.split(b"\n")
    for _ in range(draw(st.integers(1, 6))):
        at, other = draw(st.integers(0, len(lines) - 1)), draw(st.integers(0, len(lines) - 1))
        match draw(st.sampled_from(["remove", "repeat", "exchange", "value", "bytes"])):
            case "remove":
                lines[at] = b""
            case "repeat":
                lines.insert(other, lines[at])
            case "exchange":
                lines[at], lines[other] = lines[other], lines[at]
            case "value":
                name, _, _ = lines[at].partition(b" = ")
                value = draw(
                    st.sampled_from(
                        [
                            "1",
                            "-1",
                            '""',
                            "[]",
                            "{}",
                            "[1]",
                            '["x"]',
                            "{x = 1}",
                            "nan",
                            "inf",
                            "1979-05-27",
                            "true",
                            '"x"',
                            '"\\u0000"',
                            "[[]]",
                            "[{}]",
                            '{env = "X"}',
                            '{file = "/dev/zero"}',
                            "1e400",
                            '"http://["',
                        ]
                    )
                )
                lines[at] = name + b" = " + value.encode()
            case _:
                lines[at] = lines[at][: draw(st.integers(0, 20))] + draw(st.binary(max_size=4))
    return b"\n".join(lines)


FILES = mutated() | st.binary(max_size=200) | st.sampled_from(CORPUS[:6])


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """One folder for all examples, and not the parent of other tests' projects."""
    folder = factory.getbasetemp() / "settings-fuzz"
    folder.mkdir(exist_ok=True)
    return folder


@examples(100, 5_000, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(content=FILES, env=ENVIRONMENT)
def test_no_settings_give_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, env: dict[str, str]
) -> None:
    everything(shared_folder(tmp_path_factory), content, env)
