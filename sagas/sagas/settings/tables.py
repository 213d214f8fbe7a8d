"""Every table and key of saga.toml, with its type, default and meaning.

The loader refuses other keys and types, and docs/reference/settings.md is generated from here. ``default`` and
``example`` are TOML; an empty default means that the key is not set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sagas.settings.addresses import (
    require_brokers,
    require_database_url,
    require_host_port,
    require_http_url,
    require_spark_master,
    require_spark_remote,
    split_base_url,
)
from sagas.settings.setting import Setting, SettingsTable

PROJECT = SettingsTable(
    "",
    "Relative paths in saga.toml are relative to its folder.",
    (
        Setting(
            "definitions",
            "list of strings",
            "folders with definitions, searched with their subfolders",
            '["definitions"]',
            '["definitions"]',
        ),
        Setting(
            "actions",
            "list of strings",
            "Python modules with actions, consumers and bridges: dotted names, or files such as `./actions.py`",
            '["shop.actions", "./more_actions.py"]',
            "[]",
        ),
        Setting("temporal", "table", "the Temporal server", ""),
        Setting("worker", "table", "which definitions a worker runs", ""),
        Setting("connections", "table", "the participants: databases and HTTP services", ""),
        Setting("ledger", "table", "the database of the engine's own rows", ""),
        Setting("locks", "table", "the database of semantic locks", ""),
        Setting("kafka", "table", "Kafka; an empty table is enough to use the embedded broker", ""),
        Setting("spark", "table", "Spark steps", ""),
        Setting("catalogs", "table", "the Iceberg catalogs of Spark steps", ""),
        Setting("reconcile", "table", "which rows of your tables are effects of sagas", ""),
        Setting("vars", "table", "values for expressions", ""),
        Setting("serve", "table", "`saga serve`", ""),
        Setting("codec", "table", "payload encryption", "", planned_for="payload encryption"),
    ),
)

TEMPORAL = SettingsTable(
    "temporal",
    "The Temporal server. What is set nowhere comes from the Temporal profile. Without an address the server of "
    "`saga dev up` is used.",
    (
        Setting(
            "address",
            "string",
            "`host:port` of the frontend",
            '"temporal:7233"',
            variable="TEMPORAL_ADDRESS",
            address=require_host_port,
        ),
        Setting("namespace", "string", "the namespace", '"shop"', '"default"', "TEMPORAL_NAMESPACE"),
        Setting("task_queue", "string", "the task queue of the sagas", '"sagas"', '"sagas"'),
        Setting("api_key", "string or secret", "an API key", '{ env = "TEMPORAL_KEY" }', variable="TEMPORAL_API_KEY"),
        Setting("tls", "boolean or table", "`true`: TLS with the system's authorities; or the table below", ""),
        Setting("profile", "string", "the Temporal profile to read", '"production"', variable="TEMPORAL_PROFILE"),
        Setting(
            "web_ui",
            "string",
            "URL of the Web UI, for the links that commands print",
            '"https://temporal.shop"',
            address=require_http_url,
        ),
    ),
)

TLS = SettingsTable(
    "temporal.tls",
    "TLS to the Temporal server. Files are PEM.",
    (
        Setting("server_name", "string", "the name that the server's certificate must have", '"temporal.shop"'),
        Setting("ca", "string", "file of the certificate authority", '"certificates/ca.pem"'),
        Setting("cert", "string", "file of the client certificate", '"certificates/client.pem"'),
        Setting("key", "string", "file of its private key", '"certificates/client.key"'),
    ),
)

WORKER = SettingsTable(
    "worker",
    "Which definitions a worker runs, see [definitions](../explanation/security.md#definitions).",
    (
        Setting(
            "definition_key",
            "string or secret",
            "the key of the project, at least 32 characters: clients sign with it what workers run. Several keys are "
            "separated by white space: the first one signs, all of them verify. Default: the key file "
            "`.saga/definition.key`, which the first command makes that needs it",
            '{ env = "SAGA_DEFINITION_KEY" }',
        ),
        Setting(
            "accept",
            "string",
            "`signed`: the definitions of the project, and those that its key has signed; `any`: whatever a client of "
            "Temporal sends",
            '"signed"',
            '"signed"',
        ),
    ),
)

SQL_CONNECTION = SettingsTable(
    "connections.shop",
    "A database that takes part in sagas: PostgreSQL, MySQL, MariaDB or SQLite.",
    (
        Setting("kind", "string", "`sql`", '"sql"', '"sql"'),
        Setting(
            "url",
            "string or secret",
            "an SQLAlchemy URL; synchronous drivers are replaced by asynchronous ones. Without it, the database of "
            "that name on the PostgreSQL of `saga dev up`. Its scheme is the dialect in which `saga validate` reads "
            "[SQL](../how-to/write-sql.md)",
            '{ env = "SHOP_URL" }',
            address=require_database_url,
        ),
        Setting("schema", "string", "an SQL file that `saga setup` applies; it must be idempotent", '"schema.sql"'),
        Setting("pool_size", "integer", "the maximum number of open connections of a worker", "20", "20"),
        Setting(
            "isolation",
            "string",
            "the isolation level of the guard's transactions; default: the database's own on PostgreSQL, "
            "`READ COMMITTED` on MySQL and MariaDB; on SQLite they are always serializable",
            '"READ COMMITTED"',
        ),
    ),
    "[connections.NAME], a database",
)

HTTP_CONNECTION = SettingsTable(
    "connections.crm",
    "An HTTP service that takes part in sagas, see [call-http](../how-to/call-http.md).",
    (
        Setting("kind", "string", "`http` (required)", '"http"'),
        Setting("url", "string or secret", "the base URL (required)", '"https://crm.shop"', address=split_base_url),
        Setting(
            "auth",
            "table",
            "credentials: one of `bearer`, `basic`, `header`, `oauth2`, and optionally `mtls`, see "
            "[credentials](../how-to/call-http.md#credentials)",
            '{ bearer = { env = "CRM_TOKEN" } }',
        ),
        Setting(
            "idempotency",
            "string",
            "the header that carries the idempotency key; `none`: the service has no such header",
            '"Idempotency-Key"',
            '"Idempotency-Key"',
        ),
        Setting("idempotent", "boolean", "`false`: the service does not honour the key", "true", "true"),
        Setting(
            "remembers_rejections",
            "boolean",
            "`true`: after it has rejected a key, no request with that key has an effect, not even one that was sent "
            "earlier; see [rejections](../how-to/call-http.md#rejections)",
            "false",
            "false",
        ),
        Setting("settle", "duration", "how long a late effect may still appear; default: the step's timeout", '"30s"'),
        Setting("headers", "table", "fixed, public headers of every request", '{ accept = "application/json" }', "{}"),
        Setting(
            "verify",
            "string or boolean",
            "PEM file of the certificate authority; `true`: the system's. Verification cannot be disabled",
            '"certificates/crm.pem"',
        ),
        Setting(
            "allow_plain_http",
            "boolean",
            "`true`: send credentials over http:// to another machine, where the network between is trusted",
            "false",
            "false",
        ),
        Setting(
            "allowed_hosts",
            "list of strings",
            "further hosts that a `url` may name, see [hosts](../how-to/call-http.md#hosts-that-come-from-data)",
            '["files.crm.shop", "*.customers.shop"]',
            "[]",
        ),
        Setting(
            "signing_secret",
            "secret",
            "signs every request except reads, see [signatures](../how-to/notify.md#signatures)",
            '{ file = "secrets/crm" }',
        ),
    ),
    "[connections.NAME], an HTTP service",
)

LEDGER = SettingsTable(
    "ledger",
    "Where the engine keeps rows that belong to no participant, and [the outcomes of sagas](../how-to/ledger.md).",
    (
        Setting(
            "connection",
            "string",
            "an SQL connection; the default of `outbox` under `[kafka]` and of `ledger` under `[spark]`",
            '"shop"',
        ),
        Setting("retention", "duration", "how long the row of a saga that has ended is kept", '"90d"', '"365d"'),
    ),
)

LOCKS = SettingsTable(
    "locks",
    "For projects whose sagas have [`locks`](../how-to/locks.md).",
    (
        Setting(
            "connection",
            "string",
            "the SQL connection that stores the locks; all sagas that share keys must use the same database. Default: "
            "`connection` of `[ledger]`",
            '"shop"',
        ),
    ),
)

KAFKA = SettingsTable(
    "kafka",
    "For projects whose sagas [publish, request, consume or are triggered](../how-to/kafka.md).",
    (
        Setting(
            "bootstrap_servers",
            "string",
            "`host:port` of brokers, separated by commas; default: the broker of `saga dev up`",
            '"kafka-1:9092,kafka-2:9092"',
            address=require_brokers,
        ),
        Setting(
            "outbox",
            "string",
            "the SQL connection that stores the rows of `kafka.publish` and `kafka.request`; default: `connection` of "
            "`[ledger]`",
            '"shop"',
        ),
        Setting(
            "prefix",
            "string",
            "starts every transactional id, consumer group and topic of the engine. Deployments that share a cluster "
            "need different prefixes. Letters, digits, `.`, `_`, `-`",
            '"saga"',
            '"saga"',
        ),
        Setting(
            "transaction_timeout",
            "duration",
            "how long a transaction may stay open before the broker aborts it, and so how long a hanging relay can "
            "hold back readers. At most the broker's `transaction.max.timeout.ms`: the relay refuses to start above it",
            '"60s"',
            '"60s"',
        ),
        Setting("batch", "integer", "the maximum number of events in a transaction", "5000", "5000", most=100_000),
        Setting(
            "max_message_bytes",
            "integer",
            "the maximum size of key, value and headers of one event. A larger event fails its step before anything "
            "is done. Keep it below the topics' `max.message.bytes`",
            "1000000",
            "1000000",
        ),
        Setting(
            "shards",
            "integer",
            "how many relays can work on one outbox concurrently; fixed when its tables are created",
            "4",
            "4",
            most=256,
        ),
        Setting(
            "retention",
            "duration",
            "how long topics that the engine creates keep their events, and how long an outbox keeps published rows",
            '"7d"',
            '"7d"',
        ),
        Setting(
            "topics",
            "list of strings",
            "topics that only Python code emits to (`step.emit(topic, …)`): `saga setup` creates them and "
            "`saga doctor` checks them. In the environment separated by commas",
            '["orders", "mails"]',
            "[]",
        ),
        Setting(
            "accept_replies_without_token",
            "boolean",
            "`true`: also accept replies to `kafka.request` without the header `sagatoken`, from participants that do "
            "not copy it yet. Whoever may write to the reply topic can then answer for them",
            "false",
            "false",
        ),
        Setting("client", "table", "properties of librdkafka, see below", ""),
    ),
)

SPARK = SettingsTable(
    "spark",
    "For projects with [Spark steps](../how-to/spark-jobs.md).",
    (
        Setting(
            "master",
            "string",
            "`local[N]`, `spark://…`, `yarn` or `k8s://…`",
            '"local[2]"',
            '"local[2]"',
            address=require_spark_master,
        ),
        Setting(
            "remote",
            "string",
            "the address of a Spark Connect server; takes precedence over `master`",
            '"sc://spark:15002"',
            address=require_spark_remote,
        ),
        Setting(
            "stage",
            "string",
            "a URI or a folder: where outputs and frozen inputs are kept until they are published. All workers, "
            "runners and executors must reach it",
            '"s3://shop/stage"',
            '".saga/spark/stage"',
        ),
        Setting(
            "ledger",
            "string",
            "the SQL connection with the guard rows of Spark steps and the table `saga_output`, which `saga setup` "
            "creates; default: `connection` of `[ledger]`",
            '"shop"',
        ),
        Setting(
            "memory",
            "string",
            "the heap of the driver. The runner may use 2 GiB more in total (JVM, Python and Python workers); above "
            "that it is stopped",
            '"1g"',
            '"1g"',
        ),
        Setting(
            "conf",
            "table",
            "Spark properties of the session and the cluster; a step's own `conf` is for that job only. The time zone "
            "(UTC) and the unit of timestamps in Parquet are fixed, because staged files rely on them. "
            '`"spark.python.sql.dataFrameDebugging.enabled" = "true"` makes errors name the line of the job, but '
            "building expressions is several times slower",
            '{ "spark.sql.shuffle.partitions" = "8" }',
            "{}",
        ),
        Setting(
            "retention",
            "duration",
            "how long a rejected output and its report are kept. Other staged files are deleted when their saga closes",
            '"7d"',
            '"7d"',
        ),
        Setting(
            "recycle_after",
            "integer",
            "the number of runs after which a new runner is started; a step has up to three (inputs, job, audit)",
            "200",
            "200",
        ),
        Setting("python_path", "list of strings", "folders from which jobs are imported", '["."]', '["."]'),
        Setting(
            "work",
            "string",
            "where runners keep logs (`runner-*.log`, the last ten) and scratch files. Each worker needs its own",
            '".saga/spark"',
            '".saga/spark"',
        ),
    ),
)

EFFECTS = SettingsTable(
    "reconcile.effects",
    "The rows of your own tables that are effects of sagas, see "
    "[reconcile](../how-to/reconcile.md#declare-which-rows-are-effects). An array of tables; exactly one of `saga_id`, "
    "`guard_key` and `result` is set.",
    (
        Setting("name", "string", "the name in the report; default: the table", '"orders"'),
        Setting("connection", "string", "the SQL connection (required)", '"shop"'),
        Setting("table", "string", "the table (required)", '"orders"'),
        Setting("where", "string", "SQL: which rows are effects", "\"state <> 'draft'\""),
        Setting("key", "string or list", "the columns that identify a row (required)", '"order_id"'),
        Setting("saga", "string or list", "the sagas that write these rows; default: any", '"checkout"'),
        Setting("step", "string", "the step that writes them; without it a row belongs to the saga", '"place"'),
        Setting("saga_id", "string", "SQL: the id of the saga of a row", ""),
        Setting("guard_key", "string", "SQL: the step's key (`step.key`) of a row", ""),
        Setting(
            "result",
            "table",
            "a field of the step's result, and the SQL that equals it",
            '{ order_id = "order_id" }',
        ),
        Setting("amounts", "table", "column = the field of the step's result that it equals", '{ total = "total" }'),
        Setting("tolerance", "string or number", "an absolute tolerance for `amounts`", '"0.01"', "0"),
        Setting("many", "boolean", "one step may write several rows; their amounts are summed", "false", "false"),
        Setting("holds", "boolean", "reservations: no row may outlive its saga", "false", "false"),
        Setting(
            "time",
            "string",
            "SQL: when a row was written. Rows older than Temporal's retention are ignored, and `--since` reads only "
            "newer rows. Without it `--since` reads the whole table",
            '"placed_at"',
        ),
    ),
)

RECONCILE = SettingsTable("reconcile", "", (Setting("effects", "array of tables", EFFECTS.summary, ""),))

SERVE = SettingsTable(
    "serve",
    "The HTTP API of `saga serve`, see [start-and-ask-over-http](../how-to/start-and-ask-over-http.md). At least one "
    "token is required.",
    (
        Setting("token", "secret", "a bearer token with the scope `read`", '{ env = "SAGA_SERVE_TOKEN" }'),
        Setting(
            "starts_per_second", "integer", "how many sagas each token may start per second", "100", "100", most=100_000
        ),
        Setting(
            "max_body_bytes",
            "integer",
            "the maximum size of a request's body. Temporal refuses inputs above 2 MiB",
            "1000000",
            "1000000",
            most=2_000_000,
        ),
        Setting(
            "bulk_wait",
            "duration",
            "starts that arrive within this time, up to 1s, share a workflow; needs a ledger. 0s: each has its own",
            '"20ms"',
            '"0s"',
        ),
        Setting("tokens", "table", "further tokens, one table for each, see below", ""),
    ),
)

SERVE_TOKEN = SettingsTable(
    "serve.tokens.shop",
    "A bearer token of `saga serve`, with a name for people.",
    (
        Setting("secret", "secret", "the token (required)", '{ env = "SHOP_TOKEN" }'),
        Setting(
            "scopes",
            "list of strings",
            "what its holder may do: `read` outcomes, `start` sagas",
            '["read", "start"]',
            '["read"]',
        ),
    ),
    "[serve.tokens.NAME]",
)

CONNECTION_TABLES: Mapping[str, SettingsTable] = {"sql": SQL_CONNECTION, "http": HTTP_CONNECTION}

_TABLES = (PROJECT, TEMPORAL, TLS, WORKER, LEDGER, KAFKA, SPARK, RECONCILE, SERVE)


def find_setting(path: Sequence[str]) -> Setting | None:
    """The row of the key with this path, as in ``("kafka", "prefix")``; None below tables with free names."""
    *parents, key = path
    match parents:
        case ["connections", _]:
            tables = tuple(CONNECTION_TABLES.values())
        case ["serve", "tokens", _]:
            tables = (SERVE_TOKEN,)
        case _:
            tables = tuple(table for table in _TABLES if table.header == ".".join(parents))
    return next((setting for table in tables if (setting := table.setting(key))), None)
