"""Compares business tables with the guards and the sagas that should have produced their rows."""

from __future__ import annotations

from saga_spark.reconcile.comparison_database import (
    BROKEN,
    OVER,
    UNKNOWN,
    ComparisonDatabase,
    members,
    sql_constant,
    with_saga,
)
from saga_spark.reconcile.exact_numbers import exact_number, exact_sums
from saga_spark.reconcile.extracts import READ_MARGIN
from saga_spark.reconcile.findings import DECLARATION, EXPECTED_PREFIX
from saga_spark.reconcile.key_comparison import find_differing_keys, same_amount
from sagas.settings.reconcile import EffectTable
from sagas.text.exact_json import encode_json

LIVE = "reason = 'do' AND NOT undone"
"""The effect of a row of the guard is in place, as SQL."""


def check_effects(database: ComparisonDatabase, effects: EffectTable) -> None:
    """Compare the rows of a business table with the steps, or with the sagas, that write them."""
    database.open_effects(effects)
    if effects.step is None:
        database.view("owners", "SELECT saga_id AS bound FROM sagas")
        _check_rows_against_sagas(database, effects)
    else:
        _check_rows_against_guards(database, effects)


def _check_rows_against_guards(database: ComparisonDatabase, effects: EffectTable) -> None:
    """Compare the rows with the steps that are done according to the guards."""
    amounts = [f"a{index}" for index in range(len(effects.amounts))]
    given = (f"{exact_number(name)} AS {name}" for name in amounts)
    database.view("effect_rows", f"SELECT {', '.join(['bound', 'row', 'time', *given])} FROM business")
    expected = [
        f"{exact_number(f'json_extract_string(result, {sql_constant(_json_path(str(field)))})')} AS a{index}"
        for index, field in enumerate(effects.amounts.values())
    ]
    columns = ["saga_id", "step", "generation", "reason", "undone", "created_at", *expected]
    steps = f"SELECT {', '.join(columns)}, {_binding_value(effects)} AS bound FROM guard"
    if effects.sagas:
        steps += f" SEMI JOIN (SELECT saga_id FROM sagas WHERE saga IN {members(effects.sagas)}) mine USING (saga_id)"
    steps += f" WHERE split_part(step, '#', 1) = {sql_constant(str(effects.step))}"
    database.view("all_steps", steps)
    _limit_to_window(database, effects)
    database.view("owners", "SELECT bound FROM all_steps")
    if effects.holds:
        _find_unowned_reservations(database, effects)
        return
    database.view("live_steps", f"FROM steps WHERE {LIVE}")
    left, right = "live_steps", "rows_of_effects"
    if effects.many:
        for name in (left, right):
            database.view(f"{name}_summed", exact_sums(name, "bound", amounts))
        left, right = f"{left}_summed", f"{right}_summed"
    if find_differing_keys(database, left, right, ("bound",), amounts, effects.tolerance):
        _classify(database, effects)


def _classify(database: ComparisonDatabase, effects: EffectTable) -> None:
    same = "side.bound IS NOT DISTINCT FROM differing.bound"
    database.table(
        "steps_of_keys",
        "SELECT bound, min(saga_id) AS saga_id, min(step) AS step, max(generation) AS generation,"
        f" min(created_at) AS created_at, max(undone) AS undone FROM steps side SEMI JOIN differing ON {same}"
        " GROUP BY bound",
    )
    database.table(
        "rows_of_keys",
        "SELECT bound, min(row) AS row, min(time) AS time, count(*) AS business_rows FROM rows_of_effects side"
        f" SEMI JOIN differing ON {same} GROUP BY bound",
    )
    database.table(
        "joined",
        "SELECT differing.*, side.row, side.time, side.business_rows, by_guard.step, by_guard.generation,"
        " by_guard.created_at, by_guard.undone,"
        f" coalesce(by_guard.saga_id, {_saga_id_of_row(effects, 'differing.bound')}) AS saga_id"
        f" FROM differing LEFT JOIN rows_of_keys side ON {same}"
        " LEFT JOIN steps_of_keys by_guard ON by_guard.bound = differing.bound",
    )
    class_ = (
        f"CASE WHEN kind = 'missing_right' THEN CASE WHEN NOT ({UNKNOWN}) THEN '{_unfound(database)}' END"
        " WHEN kind = 'missing_left' THEN CASE"
        " WHEN coalesce(undone, false) OR state = 'COMPENSATED' THEN 'effect_not_undone'"
        f" WHEN {_old(database)} AND {UNKNOWN} THEN NULL ELSE '{_unclaimed(database, 'effect_without_saga')}' END"
        " WHEN right_rows > left_rows THEN 'effect_applied_twice'"
        " WHEN right_rows < left_rows THEN 'saga_without_effect' ELSE 'amounts_differ' END"
    )
    if database.since is not None:
        # Data from before the window may have been read incompletely.
        class_ = (
            f"CASE WHEN coalesce(least(created_at, time) >= {sql_constant(database.since)}, true) THEN {class_} END"
        )
    details = {
        "rows": "coalesce(business_rows, 0)",
        "steps_done": "left_rows",
        "bound": "bound",
        **_declaration(effects),
    }
    for index, column in enumerate(effects.amounts):
        details[column] = f"right_a{index}"
        # Of columns that are the same nothing is expected, so that a repair leaves them alone.
        is_same = same_amount(f"a{index}", effects.tolerance)
        details[f"{EXPECTED_PREFIX}{column}"] = f"CASE WHEN NOT ({is_same}) THEN left_a{index} END"
    database.add_findings(with_saga("FROM joined"), class_, place=_place(effects), row="row", details=details)


def _find_unowned_reservations(database: ComparisonDatabase, effects: EffectTable) -> None:
    """Find rows of effects with `holds` whose saga has ended, or that no saga has made."""
    owners = (
        "SELECT bound, min(saga_id) AS saga_id, min(step) AS step, max(generation) AS generation,"
        f" coalesce(bool_or({LIVE}), false) AS live FROM steps GROUP BY bound"
    )
    rows = (
        "SELECT side.bound, side.row, side.time, owners.step, owners.generation, owners.live,"
        f" coalesce(owners.saga_id, {_saga_id_of_row(effects, 'side.bound')}) AS saga_id"
        f" FROM rows_of_effects side LEFT JOIN ({owners}) owners ON owners.bound = side.bound"
    )
    class_ = (
        f"CASE WHEN {BROKEN} AND coalesce(live, false) THEN NULL"  # already reported as open_effects
        f" WHEN {_unowned(database)} THEN '{_unclaimed(database, 'reservation_unowned')}' END"
    )
    database.add_findings(
        with_saga(rows), class_, place=_place(effects), row="row", details={"bound": "bound", **_declaration(effects)}
    )


def _check_rows_against_sagas(database: ComparisonDatabase, effects: EffectTable) -> None:
    """Check the rows of a business table that belong to a saga as a whole."""
    owned = with_saga(
        "SELECT bound, bound AS saga_id, NULL AS step, NULL AS generation, count(*) AS rows, min(row) AS row,"
        " min(time) AS time FROM business GROUP BY bound"
    )
    if database.since is not None:
        since = f"coalesce(time >= {sql_constant(database.since)}, false)"
        owned = f"SELECT * FROM ({owned}) WHERE {since} OR NOT ({UNKNOWN})"
    if effects.holds:
        class_ = f"CASE WHEN {_unowned(database)} THEN '{_unclaimed(database, 'reservation_unowned')}' END"
    else:
        twice = "" if effects.many else " WHEN rows > 1 THEN 'effect_applied_twice'"
        class_ = (
            f"CASE WHEN {UNKNOWN} THEN"
            f" CASE WHEN NOT {_old(database)} THEN '{_unclaimed(database, 'effect_without_saga')}' END"
            f" WHEN state = 'COMPENSATED' THEN 'effect_not_undone' WHEN {BROKEN} THEN 'open_effects'{twice} END"
        )
    details = {"rows": "rows", "bound": "bound", **_declaration(effects)}
    database.add_findings(owned, class_, place=_place(effects), row="row", details=details)
    if effects.sagas and not effects.holds:
        done = (
            "SELECT *, NULL AS step, NULL AS generation FROM sagas ANTI JOIN business ON bound = saga_id"
            f" WHERE state = 'COMPLETED' AND judged AND saga IN {members(effects.sagas)}"
        )
        if database.since is not None and effects.time is not None:
            done += f" AND started_at >= {sql_constant(database.since)}"
        database.add_findings(
            done, f"'{_unfound(database)}'", place=_place(effects), details={"rows": "0", **_declaration(effects)}
        )


def _unclaimed(database: ComparisonDatabase, kind: str) -> str:
    """``kind``, whose command deletes the row, or the kind of a wrong declaration if not one row has an owner."""
    return kind if _some_row_has_an_owner(database) else "effects_unmatched"


def _unfound(database: ComparisonDatabase) -> str:
    """The kind of a step without its row, unless not one of the existing rows belongs to a step."""
    is_empty = not database.run("SELECT 1 FROM business LIMIT 1")
    return "saga_without_effect" if is_empty or _some_row_has_an_owner(database) else "effects_unmatched"


def _some_row_has_an_owner(database: ComparisonDatabase) -> bool:
    return bool(database.run("SELECT 1 FROM business SEMI JOIN owners USING (bound) LIMIT 1"))


def _old(database: ComparisonDatabase) -> str:
    """The saga of the row may have passed Temporal's retention, as SQL."""
    return f"coalesce(time < {sql_constant(database.horizon)}, false)"


def _unowned(database: ComparisonDatabase) -> str:
    """No open saga owns the reservation, as SQL."""
    return f"({OVER} OR {BROKEN} OR ({UNKNOWN} AND NOT {_old(database)}))"


def _binding_value(effects: EffectTable) -> str:
    """The value that links a guard row to the rows of the business table, as SQL."""
    match effects.binding:
        case "saga_id":
            return "saga_id"
        case "guard_key":
            first = "saga_id || '/' || step"
            return f"CASE WHEN generation = 1 THEN {first} ELSE {first} || '@' || generation END"
        case _:
            return f"json_extract_string(result, {sql_constant(_json_path(str(effects.result_field)))})"


def _saga_id_of_row(effects: EffectTable, bound: str) -> str:
    """The saga's id as the row itself contains it, as SQL."""
    match effects.binding:
        case "saga_id":
            return bound
        case "guard_key":
            return f"nullif(regexp_extract({bound}, '^(.*)/[^/]*$', 1), '')"
        case _:
            return "NULL"


def _limit_to_window(database: ComparisonDatabase, effects: EffectTable) -> None:
    """The views ``rows_of_effects`` and ``steps``: both sides as far back as both were read.

    If rows have no time: the sagas of the window, with all rows. Of one saga, only rows that its results name.
    """
    rows, steps = "FROM effect_rows", "FROM all_steps"
    if database.since is not None and effects.time is not None:
        steps += f" WHERE created_at >= {sql_constant(database.since - READ_MARGIN)}"
    elif database.since is not None or (database.one_saga and effects.binding == "result"):
        bounds = "SELECT bound FROM all_steps"
        if effects.binding == "saga_id":
            bounds += " UNION ALL SELECT saga_id FROM sagas"
        rows += f" SEMI JOIN ({bounds}) bounds USING (bound)"
    database.view("rows_of_effects", rows)
    database.view("steps", steps)


def _json_path(field: str) -> str:
    """A dotted field of a result as a JSON path."""
    return "$" + "".join(f".{encode_json(part).decode()}" for part in field.split("."))


def _declaration(effects: EffectTable) -> dict[str, str]:
    return {DECLARATION: sql_constant(effects.name)}


def _place(effects: EffectTable) -> str:
    return sql_constant(f"{effects.connection}.{effects.table}")
