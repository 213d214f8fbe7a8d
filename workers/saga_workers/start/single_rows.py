"""Starts each row of a batch in a workflow of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from temporalio.service import RPCError

from saga_workers.start.existing_sagas import AlreadyEnded, StartedWithOtherInput
from saga_workers.start.row_starts import RowStarter, StartRow, is_unreachable
from saga_workers.start.start_limits import StartLimits
from sagas.errors import SagaError


class SingleRowStarter(RowStarter):
    """Starts rows whose sagas share nothing."""

    def parts(self, rows: Sequence[StartRow], limits: StartLimits) -> Iterable[Sequence[StartRow]]:
        return ([row] for row in rows)

    async def start(self, rows: Sequence[StartRow]) -> None:
        (row,) = rows
        tally = self.tally
        try:
            started = await self.starter.start(row.request, id=row.id, again=self.again, labels={"batch": self.batch})
        except AlreadyEnded as error:
            tally.existing += 1
            tally.count_ended(error.state)
            return
        except StartedWithOtherInput as error:
            if not row.any_input:
                self._refuse_row(row, error)
                return
            tally.existing += 1
            self.show_progress()
            if error.state is not None:
                tally.count_ended(error.state)
            elif self.wait_for_end and self.may_wait():
                await self.wait_alone(row.id)
            return
        except (SagaError, RPCError) as error:
            if is_unreachable(error):
                raise
            self._refuse_row(row, error)
            return
        if started.started:
            tally.started += 1
        else:
            tally.existing += 1
        self.show_progress()
        if started.completed:
            tally.count_ended("COMPLETED")
        elif self.wait_for_end and self.may_wait():
            await self.wait_alone(row.id)

    def _refuse_row(self, row: StartRow, error: SagaError | RPCError) -> None:
        help = f"; {error.help}" if isinstance(error, SagaError) and error.help else ""
        self.refuse([row], f"{row.location}: {error.message}{help}")
