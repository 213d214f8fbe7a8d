from __future__ import annotations

from pathlib import Path

import pytest

from sagas.errors import UsageError
from sagas.settings import KafkaSettings, Secret, load_settings

CONNECTIONS = '[connections.shop]\nurl = "sqlite:///x.db"\n[connections.crm]\nkind = "http"\nurl = "https://x"\n'


def read(root: Path, kafka: str = "", env: dict[str, str] | None = None, dev: str = "") -> KafkaSettings:
    (root / "saga.toml").write_text(CONNECTIONS + kafka, encoding="utf-8")
    if dev:
        (root / ".saga").mkdir()
        (root / ".saga" / "dev.toml").write_text(dev, encoding="utf-8")
    return load_settings(root, env=env or {}).kafka


def test_replies_without_token_are_accepted_only_when_configured(tmp_path: Path) -> None:
    setting = "accept_replies_without_token"
    assert read(tmp_path, "[kafka]").accept_replies_without_token is False
    assert read(tmp_path, f"[kafka]\n{setting} = true").accept_replies_without_token is True
    assert read(tmp_path, "[kafka]", env={f"SAGA_KAFKA__{setting.upper()}": "true"}).accept_replies_without_token
    with pytest.raises(UsageError, match="true or false"):
        read(tmp_path, f'[kafka]\n{setting} = "yes"')


def test_without_the_kafka_table_kafka_is_unused(tmp_path: Path) -> None:
    kafka = read(tmp_path)
    assert not kafka.configured
    with pytest.raises(UsageError, match="no Kafka is configured"):
        _ = kafka.servers


def test_defaults_and_units(tmp_path: Path) -> None:
    kafka = read(tmp_path, '[kafka]\noutbox = "shop"\ntransaction_timeout = "90s"\nretention = "2d"')
    assert (kafka.configured, kafka.outbox, kafka.prefix) == (True, "shop", "saga")
    assert (kafka.transaction_timeout, kafka.retention) == (90.0, 172_800.0)
    assert (kafka.batch, kafka.max_message_bytes, kafka.shards) == (5000, 1_000_000, 4)


def test_topics_that_only_code_names(tmp_path: Path) -> None:
    assert read(tmp_path, '[kafka]\ntopics = ["orders", "mails", "orders"]').topics == ("orders", "mails")
    assert read(tmp_path, "[kafka]", env={"SAGA_KAFKA__TOPICS": "orders, mails"}).topics == ("orders", "mails")
    assert read(tmp_path, "[kafka]").topics == ()


def test_the_ledger_holds_the_outbox_by_default(tmp_path: Path) -> None:
    assert read(tmp_path, '[ledger]\nconnection = "shop"\n[kafka]').outbox == "shop"


def test_the_file_wins_over_the_embedded_broker_and_the_environment_over_both(tmp_path: Path) -> None:
    dev = '[kafka]\nbootstrap_servers = "127.0.0.1:1"'
    embedded = read(tmp_path, "[kafka]", dev=dev)
    assert (embedded.servers, embedded.embedded) == ("127.0.0.1:1", True)
    written = '[kafka]\nbootstrap_servers = "one:9092,two:9092"'
    (tmp_path / "saga.toml").write_text(CONNECTIONS + written, encoding="utf-8")
    named = load_settings(tmp_path, env={}).kafka
    assert (named.servers, named.embedded) == ("one:9092,two:9092", False)
    variable = {"SAGA_KAFKA__BOOTSTRAP_SERVERS": "three:9092", "SAGA_KAFKA__BATCH": "50"}
    kafka = load_settings(tmp_path, env=variable).kafka
    assert (kafka.servers, kafka.batch) == ("three:9092", 50)


def test_properties_of_the_client_are_written_in_any_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "s3cret")
    text = """
[kafka.client]
"security.protocol" = "SASL_SSL"
sasl.mechanism = "PLAIN"
sasl.password = {env = "KAFKA_PASSWORD"}
ssl.ca.location = "certificates/ca.pem"
ssl.key.location = "KEY"
linger.ms = 5
"enable.idempotence" = true
"""
    for file in (tmp_path / "certificates" / "ca.pem", tmp_path / "elsewhere" / "key.pem"):
        file.parent.mkdir()
        file.touch()
    text = text.replace("KEY", str(tmp_path / "elsewhere" / "key.pem"))
    kafka = read(tmp_path, text, env={"SAGA_KAFKA__CLIENT__SASL_USERNAME": "007"})
    assert kafka.client["sasl.password"] == Secret("env", "KAFKA_PASSWORD")
    assert kafka.client_properties() == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.password": "s3cret",
        "sasl.username": "007",  # not the number 7
        "ssl.ca.location": str(tmp_path.resolve() / "certificates" / "ca.pem"),
        "ssl.key.location": str(tmp_path / "elsewhere" / "key.pem"),
        "linger.ms": "5",
        "enable.idempotence": "true",
    }


def test_a_missing_secret_gives_a_one_line_error(tmp_path: Path) -> None:
    kafka = read(tmp_path, '[kafka.client]\nsasl.password = {env = "NOT_SET_ANYWHERE"}')
    with pytest.raises(UsageError, match=r"kafka\.client\.sasl\.password reads the environment variable NOT_SET"):
        kafka.client_properties()


def test_a_missing_file_gives_a_one_line_error(tmp_path: Path) -> None:
    kafka = read(tmp_path, '[kafka.client]\nssl.ca.location = "lost.pem"')
    with pytest.raises(UsageError, match=r"kafka\.client\.ssl\.ca\.location names .*lost\.pem, which does not exist"):
        kafka.client_properties()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("[kafka]\nbootstrap = 'x'", r"\[kafka\]: unknown setting bootstrap; did you mean bootstrap_servers\?"),
        ("[kafka]\noutbox = 'shp'", r"kafka.outbox names shp, which is not a SQL connection; did you mean shop\?"),
        ("[kafka]\noutbox = 'crm'", r"kafka.outbox names crm, which is not a SQL connection"),
        ("[kafka]\nprefix = 'a b'", "letters, digits"),
        (
            "[kafka]\ntopics = ['orders', 'or ders']",
            "kafka.topics: 'or ders' is not a valid topic name",
        ),
        ("[kafka]\ntopics = [1]", "kafka.topics must be a list of strings"),
        ("[kafka]\nbatch = 0", "kafka.batch must be a whole number from 1 to 100000"),
        ("[kafka]\nshards = true", "kafka.shards must be a whole number"),
        ("[kafka]\nretention = 'long'", "kafka.retention: `long` is not a duration"),
        ("[kafka]\ntransaction_timeout = '10ms'", "kafka.transaction_timeout must be at least 1s"),
        ("[kafka]\nbootstrap_servers = 9092", "kafka.bootstrap_servers must be a string"),
        ("[kafka]\nclient = 1", "kafka.client must be a table"),
        (
            "[kafka.client]\nacks = 1",
            "kafka.client.acks must stay all: an event that only one broker stores can be lost",
        ),
        ("[kafka.client]\nrequest.required.acks = '0'", "must stay all"),
        ("[kafka.client]\nenable.idempotence = false", "kafka.client.enable.idempotence must stay true: without it"),
        ("[kafka.client]\n'isolation.level' = 'read_uncommitted'", "must stay read_committed: otherwise"),
        ("[kafka.client]\nenable.auto.commit = true", "kafka.client.enable.auto.commit must stay false: an offset"),
        ("[kafka.client]\nauto.offset.reset = 'latest'", "must stay earliest"),
        ("[kafka.client]\ntransactional.id = 'mine'", "transactional.id cannot be set: the engine derives it"),
        ("[kafka.client]\ngroup.id = 'mine'", "group.id cannot be set: the engine derives it"),
        ("[kafka.client]\nbootstrap.servers = 'x:1'", "cannot be set: set bootstrap_servers under"),
        (
            "[kafka.client]\nsasl.password = ['x']",
            "kafka.client.sasl.password must be a string, a number, true or false",
        ),
    ],
)
def test_mistakes_give_a_one_line_error(tmp_path: Path, table: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        read(tmp_path, table)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("same", ["acks = 'all'", "acks = -1", "isolation.level = 'read_committed'"])
def test_options_equal_to_the_engine_choice_are_accepted(tmp_path: Path, same: str) -> None:
    read(tmp_path, f"[kafka.client]\n{same}")
