"""`saga doctor`, `saga setup` and the other commands say once what is wrong with a connection, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from saga_workers.doctor.checks import run_checks
from saga_workers.doctor.sqlite_columns import check_column_types
from saga_workers.doctor.unusable_databases import unusable_databases
from saga_workers.runtime.databases import set_up_database, why_setup_is_needed
from saga_workers.views.locks import list_locks
from sagas.errors import SagaError
from sagas.settings import SqlConnection, load_settings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.free_ports import free_port

STEPS = """saga: {name}
steps:
  - id: take
    uses: sql
    with: {{connection: {name}, run: "update stock set free = 1"}}
    compensate: auto
  - id: more
    uses: sql
    with: {{connection: {name}, run: "update stock set free = 2"}}
    compensate: auto
"""


def _urls(folder: Path, postgres: DatabaseServer, mariadb: DatabaseServer) -> dict[str, tuple[str, str, str]]:
    """For each connection its URL, and what its message and its advice must contain."""
    own, other = make_url(postgres.url("postgres")), make_url(mariadb.url("mysql")).set(drivername="mariadb")

    def text(url: object) -> str:
        return make_url(url).render_as_string(hide_password=False)  # pyright: ignore[reportArgumentType]

    return {
        "port": (text(own.set(port=free_port())), "refused", "start the database, or correct host and port in"),
        "host": (text(own.set(host="nowhere.invalid")), "nowhere.invalid", "correct the host in"),
        "role": (text(own.set(username="nobody_here")), '"nobody_here"', "correct user and password in"),
        "base": (text(own.set(database="no_such")), '"no_such"', "create the database, or correct its name in"),
        "maria": (text(other.set(username="nobody", password="x")), "Access denied", "correct user and password in"),
        "maria_port": (text(other.set(port=free_port())), "connect", "start the database, or correct host and port in"),
        "maria_base": (text(other.set(database="no_such")), "no_such", "create the database, or correct its name in"),
        "folder": (f"sqlite:///{folder}/nowhere/shop.db", "unable to open", f"create the folder {folder}/nowhere"),
    }  # fmt: skip


async def test_one_result_for_each_connection(
    tmp_path: Path, postgres_server: DatabaseServer, mariadb_server: DatabaseServer
) -> None:
    urls = _urls(tmp_path, postgres_server, mariadb_server)
    settings = [
        'definitions = ["."]',
        '[ledger]\nconnection = "port"',
        f'[connections.good]\nurl = "sqlite:///{tmp_path}/a.db"',
    ]
    settings += [f'[connections.{name}]\nurl = "{url}"' for name, (url, _, _) in urls.items()]
    (tmp_path / "saga.toml").write_text("\n".join(settings) + "\n")
    for name in ("good", *urls):
        saga = name.replace("_", "-")
        text = STEPS.format(name=name).replace(f"saga: {name}", f"saga: {saga}")
        (tmp_path / f"{saga}.saga.yaml").write_text(text)
    results = await run_checks(load_settings(config=str(tmp_path / "saga.toml")))
    for name, (_, why, help) in urls.items():
        saga = name.replace("_", "-")
        about = [f"/{saga}.saga.yaml", f"{saga}/take", f"{saga}/more"]
        (result,) = [
            each
            for each in results
            if each.check == f"connection {name}"
            or (each.check in ("statements", "automatic compensations") and any(word in each.message for word in about))
        ]
        assert (result.check, result.ok) == (f"connection {name}", False)
        assert why in result.message, result
        assert result.help is not None
        assert help in result.help, result
        assert "saga dev up" not in result.help, result
        unchecked = (
            f"; for this reason not checked: 2 statements, the automatic compensations of {saga}/take, {saga}/more"
        )
        assert unchecked in result.message, result
        assert result.message.endswith(", the locks, the claims of bulk workflows") == (name == "port")
    automatic = [each.message for each in results if each.check == "automatic compensations"]
    assert automatic == [], "those of the connection that is good: its table is missing, which one line says"
    (missing,) = [each for each in results if each.check == "statements" and "no such table" in each.message]
    assert missing.help == "create the table, or correct its name"


async def test_only_the_embedded_database_is_started_by_us(tmp_path: Path) -> None:
    port = free_port()
    for embedded, help in (
        (True, "saga dev up"),
        (False, "start the database, or correct host and port in connections.shop.url"),
    ):
        url = f"postgresql://ada@127.0.0.1:{port}/shop"
        connection = SqlConnection(name="shop", root=tmp_path, embedded=embedded, url_setting=url)
        assert (await unusable_databases([connection]))["shop"].help == help
        with pytest.raises(SagaError, match=r"cannot be set up: .*refused") as refused:
            await set_up_database(connection)
        assert refused.value.help == help
        why = await why_setup_is_needed(connection, spark=False)
        assert why is not None
        assert why.endswith(f"; {help}")


async def test_what_to_do_about_locks_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "saga.toml").write_text(
        '[connections.lite]\nurl = "sqlite:///lite.db"\n[connections.gone]\nurl = "sqlite:///nowhere/lite.db"\n'
        '[ledger]\nconnection = "lite"\n'
    )
    settings = load_settings(config=str(tmp_path / "saga.toml"))
    with pytest.raises(SagaError, match="no such table") as refused:
        await list_locks(settings)
    assert refused.value.help == "saga setup"
    (tmp_path / "saga.toml").write_text((tmp_path / "saga.toml").read_text().replace('"lite"', '"gone"'))
    with pytest.raises(SagaError, match="unable to open") as refused:
        await list_locks(load_settings(config=str(tmp_path / "saga.toml")))
    assert refused.value.help == f"create the folder {tmp_path}/nowhere, or correct the path in connections.gone.url"


async def test_what_an_error_of_a_definition_leaves_unchecked_is_said(tmp_path: Path) -> None:
    settings = ['definitions = ["."]', f'[connections.good]\nurl = "sqlite:///{tmp_path}/a.db"']
    (tmp_path / "saga.toml").write_text("\n".join([*settings, '[temporal]\naddress = "127.0.0.1:1"\n']))
    (tmp_path / "good.saga.yaml").write_text(STEPS.format(name="good"))
    (tmp_path / "bad.saga.yaml").write_text(STEPS.format(name="good").replace("saga: good", "saga: bad\nstpes: 1"))
    results = await run_checks(load_settings(config=str(tmp_path / "saga.toml")))
    (definitions,) = [result for result in results if result.check == "definitions"]
    assert definitions.ok is False
    unchecked = "for this reason not checked: the statements, automatic compensations, two-phase commits, Spark jobs,"
    assert unchecked in definitions.message
    assert definitions.message.endswith(f"task queues of {tmp_path}/bad.saga.yaml")
    assert [result.message for result in results if result.check == "statements" and result.ok is False], results


async def test_columns_of_sqlite_that_make_numbers_of_text_are_named(tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/typed.db")
    try:
        async with engine.begin() as connection:
            assert await check_column_types("shop", engine) == []
            await connection.exec_driver_sql(
                "create table stock (sku string, name varchar(9), free int, price decimal(9, 2), at datetime, doc json,"
                " raw, ean Str)"
            )
            await connection.exec_driver_sql("insert into stock (sku, name) values ('007', '007')")
            stored = (await connection.exec_driver_sql("select typeof(sku), typeof(name) from stock")).one()
            assert tuple(stored) == ("integer", "text")
        (column_type,) = await check_column_types("shop", engine)
    finally:
        await engine.dispose()
    assert (column_type.check, column_type.ok, column_type.help) == (
        "columns of shop",
        None,
        "declare columns of text as TEXT",
    )
    assert column_type.message.endswith(" because of the types of stock.sku (string), stock.ean (Str)")
