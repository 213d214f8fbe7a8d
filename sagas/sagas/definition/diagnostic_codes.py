"""The codes of diagnostics. The meaning of a code never changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class DiagnosticCode:
    """A diagnostic code: ``title`` names the mistake, ``help`` says how to correct it."""

    severity: Severity
    title: str
    help: str


def _error(title: str, help: str) -> DiagnosticCode:
    return DiagnosticCode("error", title, help)


def _warning(title: str, help: str) -> DiagnosticCode:
    return DiagnosticCode("warning", title, help)


DIAGNOSTIC_CODES: dict[str, DiagnosticCode] = {
    # SAGA1xx: the structure of the file
    "SAGA100": _error("the file is not readable YAML", "correct the YAML at this position"),
    "SAGA101": _error(
        "an expression must be quoted",
        'put the whole value in quotes, "${{ … }}": YAML interprets `: `, `{`, `}` and ` #`',
    ),
    "SAGA102": _error("the same key twice", "remove one of them; YAML would silently keep only one"),
    "SAGA103": _warning(
        "a rejection is possible after the pivot",
        "after the pivot nothing is rolled back, so a rejection parks the saga: move the step before the pivot, "
        "declare the action with rejects=False, or write `on_failure: park` or `continue`",
    ),
    "SAGA104": _error("unknown field", "remove it, or start its name with `x-` to keep it as a comment"),
    "SAGA105": _error("a required field is missing", "add the field"),
    "SAGA106": _error("a field has the wrong type or value", "write the value as described"),
    "SAGA107": _error("a name is not allowed", "choose another name"),
    "SAGA108": _error("two steps have the same id", "give every step an id of its own"),
    "SAGA109": _error("not a duration", "write a number with a unit: 500ms, 90s, 10m, 2h or 7d"),
    "SAGA110": _error("the file cannot be read", "check the path, the permissions and that the file is UTF-8 text"),
    "SAGA111": _error("two definitions have the same name", "rename one of the two sagas"),
    "SAGA112": _error("`input` is not a JSON Schema", "write a JSON Schema (2020-12) here"),
    "SAGA113": _error("fields that exclude each other", "keep one of the two"),
    "SAGA114": _error(
        "`heartbeat` is not shorter than `timeout`",
        "make `heartbeat` shorter, so that one can be missed before the attempt times out",
    ),
    "SAGA115": _error(
        "`deadline` with `recovery: forward`",
        "a deadline rolls back, and this saga only goes forward: use `warn_after` to be notified when it is late",
    ),
    "SAGA116": _error("`execution: local` is not possible here", "remove it; the step then runs as a normal activity"),
    "SAGA117": _error(
        "a sensitive value in a label or an id",
        "labels and ids are plain text in Temporal and in logs: use a value that is not `x-sensitive`",
    ),
    "SAGA118": _warning("a field that has no effect here", "remove it"),
    "SAGA119": _error(
        "a pattern that takes unbounded time",
        "write it without lookahead, lookbehind and backreferences: patterns are RE2",
    ),
    "SAGA120": _error(
        "an id that no saga may have",
        "every start would be refused: write an id without `/`, `~`, control characters and white space at its ends",
    ),
    "SAGA121": _warning(
        "a default that is never filled in",
        "write it on a property of an object: under `properties`, `allOf` or `$ref`, or in a part of `if`, `anyOf`, "
        "`oneOf` or `dependentSchemas` that alone has a default for it",
    ),
    "SAGA122": _warning(
        "a format that is not checked",
        "the formats are date-time, date, time, duration, email, uri, hostname, ipv4, ipv6 and uuid; use `pattern` "
        "for others",
    ),
    "SAGA123": _error(
        "an `x-sensitive` without effect",
        "write `x-sensitive: true` in a schema that describes a value of the input",
    ),
    "SAGA124": _error(
        "a part of `input` that no value can fit",
        "correct one of the two keywords: every start with such a value would be refused",
    ),
    "SAGA130": _error(
        "a trigger sends a signal that no `wait` receives", "name the `signal` of a `wait` step of this saga"
    ),
    "SAGA131": _error(
        "a trigger with `signal` does not name the saga it signals",
        'add `id`, for example id: "${{ trigger.headers.sagaid }}"',
    ),
    "SAGA132": _error("the input of a trigger does not fit `input`", "write an input that the schema allows"),
    "SAGA133": _error(
        "a trigger with `bulk` that cannot share workflows", "only starts share workflows, and wait up to 5s for others"
    ),
    "SAGA134": _error("a cron expression that cannot be read", "write five fields, for example `30 3 * * *`"),
    "SAGA135": _error("an unknown time zone", "write a name of the IANA database, for example Europe/Berlin or UTC"),
    "SAGA136": _warning(
        "a cron expression with both fields of days",
        "other programs start on days that match one of them; write `*` in one field, unless both are meant",
    ),
    "SAGA137": _error(
        "an overlap policy that leaves effects open",
        "write `cancel_other`, which undoes the earlier saga first, or `skip`",
    ),
    "SAGA138": _error(
        "a trigger with `redeliver` whose events cannot start a saga again",
        "remove it: only an event that starts a saga with a workflow of its own does, after a compensation",
    ),
    "SAGA140": _error(
        "an action that cannot deliver a notification",
        "use `http`, `kafka.publish`, `outbox.emit`, `sql`, or an action of your own",
    ),
    "SAGA142": _error("a setting is wrong", "correct it in saga.toml, or in its variable"),
    "SAGA143": _error("an action module cannot be imported", "correct the module, or `actions` in saga.toml"),
    "SAGA141": _warning("an event that never occurs", "remove it from `when`"),
    # SAGA2xx: the graph and the kinds of the steps
    "SAGA201": _error("`needs` names no step", "name the id of a step of this saga"),
    "SAGA202": _error("steps need each other in a cycle", "remove one of the `needs`"),
    "SAGA203": _error("more than one pivot", "a saga has one point of no return: keep `pivot: true` on one step"),
    "SAGA204": _error("a field that a pivot cannot have", "remove it, or move it to another step"),
    "SAGA205": _error(
        "an effect before the commit point without `compensate`",
        "add `compensate`, make it the pivot with `pivot: true`, or write `effect: none` if it only reads",
    ),
    "SAGA206": _error(
        "`compensate` on a retriable step",
        "after the commit point nothing is undone: remove `compensate`, or move the step before the pivot",
    ),
    "SAGA207": _error(
        "`effect: none` on a step with an effect",
        "a read has nothing to undo, to confirm or to decide: remove one of the two",
    ),
    "SAGA208": _error(
        "`on_failure: compensate` after the commit point",
        "nothing is rolled back there: leave it out to retry without limit, or write `park` or `continue`",
    ),
    "SAGA209": _error(
        "a step with an effect runs parallel to the pivot",
        "whether it must be undone would be undecided: put it before the pivot, or let it need the pivot",
    ),
    "SAGA210": _error(
        "a limit of attempts that cannot apply",
        "after the commit point retries have no limit: remove it, or write `on_failure: park` or `continue`",
    ),
    "SAGA211": _error(
        "a nested saga that cannot be undone before the commit point",
        "make it the pivot, put it after the pivot, or give the step a `compensate` of its own",
    ),
    "SAGA212": _error("a field for rollback in a saga with `recovery: forward`", "remove it"),
    "SAGA213": _error("a nested saga that is not defined", "name a saga of this project"),
    "SAGA215": _error(
        "an input that the nested saga refuses", "write under `input` what the `input` schema of that saga takes"
    ),
    "SAGA214": _error(
        "`finish` is not possible here",
        "put it before the pivot, without `for_each`, and let each step with an effect need it or be needed by it",
    ),
    "SAGA216": _warning(
        "a confirmed step that nothing undoes, among others that can be undone",
        "give its `compensate` a `confirmed`, or remove that of the others: they cannot be undone without it",
    ),
    "SAGA217": _error(
        "a nested saga with errors", "correct the definition of that saga: its errors are reported there"
    ),
    "SAGA220": _warning(
        "an unguarded pivot without `probe`",
        "if an attempt times out, its effect is unknown and the saga parks: add a `probe`",
    ),
    "SAGA221": _warning(
        "an unguarded step without `probe` or idempotency",
        "an unknown attempt is never repeated, and is undone blindly: add a `probe`, or use an idempotency key",
    ),
    "SAGA222": _warning(
        "a probe that can never have a result",
        "map its response with `done` and `absent`, or let the action return Done(result), Absent or Unknown",
    ),
    "SAGA223": _warning(
        "a rejection that may mean that an earlier request is in progress",
        "write `remembers_rejections` at the step or its connection: `true` if such a status is final for the key; "
        "`false` if not: after an attempt without an answer it is then retried, and the step is undone in the end",
    ),
    "SAGA241": _error("a savepoint that has no effect", "write it on a step before the pivot that others follow"),
    "SAGA242": _error(
        "a compensation or a confirm that the engine itself would have to perform",
        "name an action of your own, `sql`, `http`, `outbox.emit` or `kafka.publish`",
    ),
    "SAGA243": _warning(
        "a compensation or a confirm that only reads",
        "http GET and HEAD have no effect: name the request that has one, such as `method: POST`",
    ),
    "SAGA250": _error(
        "`locks` without a database", "name an SQL connection: `connection` under `[locks]` or `[ledger]` of saga.toml"
    ),
    "SAGA251": _error(
        "`locks` that contradict the commit point",
        "locks are taken while the saga can still be undone: name a step before the pivot, or the pivot",
    ),
    "SAGA252": _warning(
        "a step that may run before or after the locks are taken",
        "let it run before or after the step of `from`: write `needs`",
    ),
    "SAGA253": _error("a key that no lock can have", "write 1 to 200 printable characters, and at most 100 keys"),
    "SAGA240": _error("a check that is not possible", "name a read: an action of your own, `sql`, `http` or `require`"),
    "SAGA230": _warning(
        "a `timeout` of one second or less",
        "give it more time: a short pause of the worker would fail the attempt, and Temporal's Web UI flags it",
    ),
    "SAGA231": _warning(
        "`max_attempts: 1`",
        "allow at least two attempts: one lost connection would end the step, and Temporal's Web UI flags it",
    ),
    "SAGA232": _warning(
        "`give_up_after` leaves no room for a second attempt",
        "make it at least twice the `timeout`; Temporal's Web UI flags it",
    ),
    "SAGA233": _warning(
        "`heartbeat` is nearly as long as `timeout`",
        "keep `heartbeat` below four fifths of the `timeout`; Temporal's Web UI flags it",
    ),
    "SAGA234": _warning(
        "`settle` is shorter than the `timeout` of an attempt",
        "let it be as long as the participant may still be busy with a request, or leave it out: default is one minute "
        "or twice the `timeout`, the longer",
    ),
    "SAGA235": _warning(
        "a built-in action on another task queue",
        "leave out `task_queue`, unless a `saga worker` polls that queue: a worker in another language, or of another "
        "program, has only actions of its own",
    ),
    "SAGA236": _warning(
        "a step that is undone or confirmed by its own call",
        "write `with` there: without it the arguments are those of the step, so that its request is sent, or its "
        "statement run, a second time",
    ),
    "SAGA260": _warning(
        "an update that overwrites what others have written in between",
        "compute it in the statement (`set x = x + :n`), compare a version that was read and write `expect_rows: 1`, "
        "or take `locks`",
    ),
    "SAGA261": _error(
        "`commutative: true` on a step whose effect depends on the order",
        "only add and subtract (`set x = x + :n`), also in `compensate`, and insert new rows; or remove `commutative`",
    ),
    "SAGA262": _warning(
        "a decision about an effect that may still be undone",
        "take `locks` before the read, or let the other step reserve and `confirm`, and read what is confirmed only",
    ),
    # SAGA3xx: expressions
    "SAGA301": _error("an expression does not parse", "expressions are CEL, see https://cel.dev"),
    "SAGA302": _error(
        "an expression names something unknown",
        "known names: input, steps.<id>, item and index (with for_each), saga, step.key, step.forward_key, vars",
    ),
    "SAGA303": _error(
        "a reference to a step that is not an ancestor",
        "its result is not there yet: add it to `needs`, or move the step below it",
    ),
    "SAGA304": _error("an operator that cannot take its operands", "convert it to an exact number first: decimal(x)"),
    "SAGA305": _warning(
        "a result that may be null is used without a default",
        "give a default: default(steps.x.result, …), or test for null: steps.x.result != null ? … : …; an undo finds "
        "the effect of its step by step.forward_key instead",
    ),
    "SAGA306": _error(
        "`for_each` over a value that is not a list",
        "declare the input as `type: array`, or write an expression that returns a list",
    ),
    "SAGA307": _warning(
        "a compensation or a confirm uses its own key to find the effect",
        "write step.forward_key, the key of the forward call: there `step.key` ends in `/undo` or `/confirm`",
    ),
    "SAGA308": _warning(
        "a variable that the project does not have",
        "the saga fails where it is used: add it under [vars] in saga.toml, or give a default: default(vars.x, …)",
    ),
    "SAGA309": _warning(
        "an optional property without a default is used bare",
        "write default(input.x, …) or has(input.x) ? … : …, or give the property a `default` in the schema",
    ),
    "SAGA310": _error(
        "a value that may be missing is used where the saga would park",
        "write default(input.x, …) or has(input.x) ? … : …, or give the property a `default` in the schema",
    ),
    "SAGA311": _warning(
        "a path of a value that is stored as text",
        'put it in `${{ }}`, and the whole in quotes: "${{ input.customer }}"; `$${{` is a literal `${{`',
    ),
    "SAGA312": _warning("a comparison with a text that never occurs", "compare with a value that it can have"),
    "SAGA313": _error("a condition that is neither true nor false", "write a comparison, for example input.n > 0"),
    "SAGA314": _warning(
        "a refusal that reads a field which the answer may not have",
        "whether such an answer is a no would be unknown: write default(response.json.status, '') == 'declined', or"
        " has(response.json.status) && …",
    ),
    "SAGA315": _warning(
        "the start of the saga in the arguments of a participant",
        "give the saga the time with its input, which is the same in each of its runs: input.ordered_at",
    ),
    # SAGA4xx: actions and their arguments
    "SAGA401": _error("unknown action", "run `saga actions` to list the known ones"),
    "SAGA402": _error("a required argument is missing", "add it under `with`"),
    "SAGA403": _error("unknown argument", "remove it, or add it to the action's signature"),
    "SAGA404": _error("an argument has the wrong type", "write a value of the type that the action takes"),
    "SAGA405": _error("unknown or unsuitable connection", "name a connection of saga.toml of the right kind"),
    "SAGA406": _error(
        "a statement that a guarded step refuses",
        "write one query or one change of rows per statement, several as a list under `run`; leave the "
        "transaction to the guard and changes of the schema to a migration tool",
    ),
    "SAGA407": _error(
        "a field that a Spark step defines itself",
        "remove it: the engine publishes after the commit point, and discards or reverts when rolling back",
    ),
    "SAGA408": _error(
        "a Spark step is incomplete or contradictory",
        "give it one `job` or `sql`, one `output` or `outputs`, one source per input and one target per output",
    ),
    "SAGA409": _error(
        "a sink that cannot do this",
        "choose a mode that the sink has, or another sink; 'Put a Spark job into a saga' of the documentation has what"
        " each one can do",
    ),
    "SAGA410": _error(
        "a Spark step without a ledger",
        'name the SQL connection that stores its guard and fence rows: [spark] ledger = "…" in saga.toml',
    ),
    "SAGA411": _error("unknown catalog", "name a catalog of saga.toml"),
    "SAGA412": _error(
        "no database for events to Kafka",
        'name the SQL connection whose outbox stores them until they are published: [kafka] outbox = "…" in saga.toml',
    ),
    "SAGA413": _error("`hold` must be a literal", "write `hold: true` or `hold: false`"),
    "SAGA414": _error(
        "`outbox.drop` or `outbox.release` where no event is held",
        "use `outbox.drop` under `compensate`, and `outbox.release` under `confirm`, of a step before the commit "
        "point whose events have `hold: true`",
    ),
    "SAGA415": _error("`reply_topic` must be a literal", "write the name of the topic"),
    "SAGA416": _error(
        "a header that the engine writes itself",
        "give it a name that begins neither with `saga` nor with `ce_`, and is not `content-type`",
    ),
    "SAGA417": _error(
        "a program, or a time zone, on a Spark Connect server",
        "write the job as SQL or as a Python function, or configure `master` instead of `remote` under [spark]",
    ),
    "SAGA418": _error(
        "a header of a request that the engine sets",
        "remove it; `idempotency` of the connection in saga.toml names the header that carries the key",
    ),
    "SAGA419": _error(
        "a callback that cannot arrive",
        "set public_url under [serve] in saga.toml: the address at which participants reach `saga serve`",
    ),
    "SAGA420": _error(
        "an expression in SQL",
        "write a named parameter, `:name`, and its value under `params`, or a condition as `where: {column: value}`",
    ),
    "SAGA421": _error(
        "a computed name that may be any value",
        "list its values: with `enum` in the schema of `input`, as literals (`{'eu': 'orders_eu'}[input.region]`), or "
        "under [vars] in saga.toml",
    ),
    "SAGA422": _error(
        "names or SQL inside a computed list or mapping",
        "write the list or mapping in YAML, with expressions for its values only",
    ),
    "SAGA423": _error(
        "two-phase commit is not possible here",
        "leave out `two_phase`, or move it to a `sql` step before the pivot on PostgreSQL, MySQL or MariaDB",
    ),
    "SAGA424": _error(
        "`compensate` or `confirm` on a step with `two_phase`",
        "remove it: the engine rolls the prepared transaction back, or commits it at the commit point",
    ),
    "SAGA425": _error(
        "a comment that takes the rest of a statement with it",
        "YAML joins the lines of `>`, `>-` and plain text: write the SQL under `|`, which keeps its lines",
    ),
    "SAGA426": _error(
        "parameters and placeholders of SQL differ",
        "give each placeholder `:name` a value under `params`, and remove each entry that no placeholder uses",
    ),
    "SAGA427": _error(
        "an argument that has no effect in this form", "write it where it has an effect, as the help says, or remove it"
    ),
    "SAGA428": _warning(
        "an order by a parameter",
        "write the name of the column, or `case when :order = 'price' then price end` for each column to choose from",
    ),
    "SAGA429": _warning(
        "a division in SQL that depends on how a number is written",
        "write a cast at the parameter, or declare it as `type: integer`",
    ),
    "SAGA430": _error(
        "`compensate: auto` cannot undo this",
        "write `sql` statements that each change rows of one table with a primary key, or name an action that undoes "
        "the step",
    ),
    "SAGA431": _error(
        "a list or an object as a single value in SQL",
        "compare with the items of the list in the way of the database, as the help says",
    ),
}
