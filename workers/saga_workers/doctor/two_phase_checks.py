"""Checks of `saga doctor` for databases in which steps with `two_phase` prepare transactions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.guard.schema import MYSQL_DIALECTS
from saga_activities.guard.two_phase.prepared import PreparedTransaction, list_prepared
from saga_workers.doctor.doctor_result import DoctorResult
from saga_workers.runtime.database_access import driver_message
from sagas.text.shell import saga_command
from sagas.text.shortening import join_names

_MAX_ACCOUNTS = 5
# On MariaDB XA RECOVER and XA COMMIT need no privilege. On MySQL XA RECOVER, which shows the random ids, needs one.
_MARIADB_ACCOUNTS = (
    "select concat(user, '@', host) from mysql.user where concat(user, '@', host) <> current_user()"
    " and is_role = 'N' and super_priv = 'N' and user <> 'mariadb.sys'"
)
_MYSQL_ACCOUNTS = (
    "select concat(user, '@', host) from mysql.global_grants where priv = 'XA_RECOVER_ADMIN'"
    " and concat(user, '@', host) <> current_user()"
    " and (user, host) not in (select user, host from mysql.user where super_priv = 'Y')"
)
_FIRST_MARIADB = (10, 5)
_FIRST_MYSQL = (8, 0, 29)


async def check_two_phase(name: str, engine: AsyncEngine, warn_after: float) -> list[DoctorResult]:
    """Return whether the database can prepare transactions, and those that were prepared ``warn_after`` seconds ago."""
    check = f"two-phase commit of {name}"
    try:
        results = [await _check_server(check, engine), *await _check_accounts(name, engine)]
        return [*results, *_stuck_results(name, await list_prepared(engine), warn_after)]
    except DBAPIError as error:
        if engine.dialect.name == "mysql":
            return [
                DoctorResult(
                    check, False, f"XA RECOVER is refused: {driver_message(error)}", "grant XA_RECOVER_ADMIN on *.*"
                )
            ]
        raise


async def _check_server(check: str, engine: AsyncEngine) -> DoctorResult:
    match engine.dialect.name:
        case "postgresql":
            async with engine.connect() as connection:
                limit = int((await connection.execute(text("show max_prepared_transactions"))).scalar_one())
            if limit == 0:
                message = "max_prepared_transactions is 0, so no step can be prepared"
                return DoctorResult(check, False, message, "set max_prepared_transactions = 50, and restart PostgreSQL")
            return DoctorResult(check, True, f"at most {limit} transactions can be prepared at one time")
        case "mysql" | "mariadb":
            async with engine.connect():
                version = engine.dialect.server_version_info or ()
            mariadb = getattr(engine.dialect, "is_mariadb", False)
            first = _FIRST_MARIADB if mariadb else _FIRST_MYSQL
            product = "MariaDB" if mariadb else "MySQL"
            needed = ".".join(map(str, first))
            numbers = tuple(part for part in version if isinstance(part, int))
            if numbers < first:
                message = f"{product} before {needed} does not keep prepared transactions of closed connections"
                return DoctorResult(check, False, message, f"update {product}")
            return DoctorResult(check, True, f"{product} {'.'.join(map(str, numbers))} keeps prepared transactions")
        case other:
            return DoctorResult(check, False, f"{other} has no prepared transactions", "remove `two_phase`")


async def _check_accounts(name: str, engine: AsyncEngine) -> list[DoctorResult]:
    """On MySQL and MariaDB name the accounts that may commit or roll back the transactions of the sagas."""
    if engine.dialect.name not in MYSQL_DIALECTS:
        return []
    mariadb = getattr(engine.dialect, "is_mariadb", False)
    async with engine.connect() as connection:
        try:
            rows = (await connection.execute(text(_MARIADB_ACCOUNTS if mariadb else _MYSQL_ACCOUNTS))).scalars()
            accounts = sorted(str(row) for row in rows)
        except DBAPIError:
            accounts = None
    check = f"accounts of {name}"
    if accounts == []:
        return [DoctorResult(check, True, "no other account may end its prepared transactions")]
    if accounts is None:
        message = "the accounts of the server are not readable; others that exist"
    else:
        message = join_names(accounts, limit=_MAX_ACCOUNTS)
    message += " may commit or roll back the prepared transactions of sagas"
    return [
        DoctorResult(check, None, message, "give steps with `two_phase` a server of their own, or trust these accounts")
    ]


def _stuck_results(name: str, prepared: Sequence[PreparedTransaction], warn_after: float) -> Iterator[DoctorResult]:
    for transaction in prepared:
        if transaction.is_foreign:
            message = f"{transaction.id} belongs to no saga; it is {transaction.describe()}"
            yield DoctorResult(
                f"prepared transaction of {name}",
                False if transaction.is_older_than(warn_after) else None,
                message,
                transaction.rollback,
            )
        elif transaction.entry_key is not None and transaction.is_older_than(warn_after):
            message = f"{transaction.id} is {transaction.describe()}"
            yield DoctorResult(
                f"prepared transaction of {name}", False, message, saga_command("show", transaction.entry_key.saga_id)
            )
