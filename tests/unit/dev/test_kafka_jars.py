"""The jars of the embedded Kafka match the list; otherwise Kafka does not start and one line says why."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from saga_workers.devstack import kafka_server
from saga_workers.devstack.kafka_server import (
    KAFKA_JARS,
    KafkaUnavailableError,
    broker_unavailable_reason,
    create_class_archive,
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a Java that fetches nothing."""
    program = tmp_path / "java" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho '  ::  java.net.UnknownHostException: no.such.host'\n", encoding="ascii")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return KAFKA_JARS.folder()


def test_the_list_names_each_jar_once_with_its_sum() -> None:
    listed = KAFKA_JARS.jars()
    assert len({jar.file for jar in listed}) == len(listed)
    assert {"kafka_2.13", "kafka-clients", "log4j-slf4j-impl"} <= {jar.module for jar in listed}
    assert all(re.fullmatch(r"[0-9a-f]{64}", jar.sha256) for jar in listed)


def test_a_failed_download_leaves_nothing(cache: Path) -> None:
    output: list[str] = []
    with pytest.raises(KafkaUnavailableError, match=r"could not be downloaded: .*UnknownHostException") as caught:
        KAFKA_JARS.fetch(output.append)
    assert "\n" not in caught.value.message
    assert output == ["downloading the embedded Kafka, once for this user (44 MB)"]
    assert [entry.name for entry in cache.iterdir()] == ["lock"]


def test_a_jar_that_was_changed_is_not_run(cache: Path) -> None:
    (cache / "jars").mkdir(parents=True)
    for jar in KAFKA_JARS.jars():
        (cache / "jars" / jar.file).write_bytes(b"something else")
    with pytest.raises(
        KafkaUnavailableError, match=r"is damaged: the checksum of .* differs from kafka\.lock"
    ) as caught:
        KAFKA_JARS.fetch(print)
    assert caught.value.help == f"delete {cache}; it is downloaded again"


def test_without_java(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(cache))
    sentence = broker_unavailable_reason(print)
    assert sentence is not None
    assert sentence.startswith("Kafka and the services that need it are not started: the embedded Kafka needs Java 17")
    assert "\n" not in sentence


def test_a_jvm_that_is_too_slow_for_an_archive_is_ended(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = cache.parent.parent.parent / "java" / "bin" / "java"
    slow.write_text(
        "#!/bin/sh\ntrap '' TERM\n"
        "for word; do case $word in -XX:ArchiveClassesAtExit=*) draft=${word#*=};; esac; done\n"
        f'[ "$draft" ] || exit 0\necho half > $draft\necho $$ > {cache}/pid\nwhile :; do sleep 0.05; done\n',
        encoding="ascii",
    )
    monkeypatch.setattr(kafka_server, "_START_TIMEOUT", 1.0)
    create_class_archive([])
    assert sorted(entry.name for entry in cache.iterdir()) == ["lock", "pid"]
    assert not Path("/proc", (cache / "pid").read_text().strip()).exists()
