"""The ledger: one row for each saga in a database of the project, which outlives Temporal's retention.

:mod:`tables` has the table and its types, :mod:`schema` creates it, :mod:`rows` writes and reads it, :mod:`retention`
creates the partitions of the months to come and deletes what is old.
"""

from __future__ import annotations
