"""How xdist distributes the tests of a run."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

_STAGING = "tests/integration/spark/staging/"
WITH_SPARK = (
    "tests/unit/spark/",
    *(
        f"{_STAGING}test_{name}.py"
        for name in ("conditions", "glob_characters", "parquet_inputs", "partitioned_tables")
    ),
    *(f"{_STAGING}test_{name}.py" for name in ("session_zones", "spark_sql_parameters", "streaming", "text_files")),
    "tests/integration/spark/reconcile/test_values_that_are_no_numbers.py",
)
"""What uses the fixture `spark`, which is expensive: one process has the session."""

TOGETHER = {
    "Spark": WITH_SPARK,
    "faults": ("tests/faults/test_cells.py", "tests/faults/test_cancel_timing.py", "tests/faults/evidence/"),
    "browser": ("tests/integration/web_ui/",),
    "stuck sagas": tuple(
        f"tests/integration/operators/test_{name}.py"
        for name in ("literal_commands", "operator_advice", "operator_states")
    ),
}
"""Files that share an expensive fixture: one process has it, and runs all of them."""


class FilesAndFolders(LoadFileScheduling):
    """Gives each file to one process, as ``--dist loadfile`` does, and all that share an expensive fixture to one."""

    def _split_scope(self, nodeid: str) -> str:
        names = (name for name, files in TOGETHER.items() if nodeid.startswith(files))
        return next(names, super()._split_scope(nodeid))

    def remove_node(self, node: WorkerController) -> str | None:
        """Return the test whose process has ended. xdist would run it again, and so end the next process, too."""
        workload = self.assigned_work.pop(node)
        crashed = next((id for unit in workload.values() for id, ended in unit.items() if not ended), None)
        if crashed is not None:
            workload[self._split_scope(crashed)][crashed] = True
            self.workqueue.update({scope: unit for scope, unit in workload.items() if not all(unit.values())})
            for other in self.assigned_work:
                self._reschedule(other)
        return crashed
