"""The saga as a DBOS workflow: `python -m benchmarks.peers.dbos.saga URL SYSTEM_URL`.

Its steps are transactions of a datasource: DBOS's row in each of them is the barrier, so a step that has happened is
never repeated, and what has not happened needs no undo. Isolation is READ COMMITTED, as everywhere in this benchmark;
DBOS's default is SERIALIZABLE.
"""

from __future__ import annotations

import sys

import sqlalchemy as sa
from dbos import DBOS, SetWorkflowID, SQLAlchemyDatasource

from benchmarks.no_engine import STEPS, Payment
from benchmarks.peers.accounts import ImpossibleEffect
from benchmarks.peers.program import serve_in_threads

THREADS = 20

_CHANGE = sa.text("update account set balance = balance - :amount where id = :id")


def main(url: str, system_url: str) -> None:
    DBOS(
        config={
            "name": "peers",
            "system_database_url": system_url,
            "sys_db_pool_size": THREADS,
            "log_level": "WARNING",
            "run_admin_server": False,
        }
    )
    pool = {"pool_size": THREADS, "max_overflow": 0}
    bank = SQLAlchemyDatasource.create(url, engine_kwargs=pool)

    @bank.transaction(isolation_level="READ COMMITTED")
    def change(account: str, amount: int) -> None:
        changed = bank.sql_session().execute(_CHANGE, {"amount": amount, "id": account})
        if changed.rowcount == 0:
            raise ImpossibleEffect(f"there is no account {account}")

    @DBOS.workflow()
    def pay(account: str, amount: int, second: str, excess: int) -> bool:
        done: list[tuple[str, int]] = []
        try:
            for step in range(STEPS):
                call = (second, amount + excess) if step == 1 else (account, amount)
                change(*call)
                done.append(call)
        except (ImpossibleEffect, sa.exc.IntegrityError):
            for of, taken in reversed(done):
                change(of, -taken)
            return False
        return True

    DBOS.launch()

    def run(id: str, payment: Payment) -> bool:
        with SetWorkflowID(id):
            return pay(payment.account, payment.amount, payment.second, payment.excess)

    serve_in_threads(run, THREADS)
    DBOS.destroy()


if __name__ == "__main__":
    main(*sys.argv[1:])
