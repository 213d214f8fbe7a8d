"""Writes docs/reference/settings.md from the models of saga.toml.

`python -m tests.unit.settings.reference_page` writes it again.
"""

from __future__ import annotations

from pathlib import Path
from textwrap import fill

from pydantic.fields import FieldInfo

from sagas.definition.times import format_duration
from sagas.settings.codec import CodecSettings
from sagas.settings.connections import HttpService, SqlConnection
from sagas.settings.enqueue import EnqueueSettings
from sagas.settings.forms import Variable, to_toml
from sagas.settings.kafka import ENGINE_PROPERTIES, REQUIRED_VALUES, KafkaSettings
from sagas.settings.ledger import LedgerSettings, LockSettings
from sagas.settings.model import Settings
from sagas.settings.reconcile import EffectTable
from sagas.settings.serve import ServeSettings, ServeToken
from sagas.settings.spark import SparkTable
from sagas.settings.table import Table, example_of, form_of, keys
from sagas.settings.temporal import TemporalSettings, Tls
from sagas.settings.worker import WorkerSettings

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/settings.md"

TABLES: tuple[type[Table], ...] = (
    Settings,
    TemporalSettings,
    Tls,
    CodecSettings,
    WorkerSettings,
    SqlConnection,
    HttpService,
    LedgerSettings,
    LockSettings,
    KafkaSettings,
    SparkTable,
    EffectTable,
    EnqueueSettings,
    ServeSettings,
    ServeToken,
)


_HEAD = """# Settings: saga.toml

Every command reads the `saga.toml` of the project: the nearest one from the current folder upwards, or the file named
by `--config`. All tables are optional. An unknown key is an error, with the nearest known one.

Order: flags > `SAGA_…__…` > `TEMPORAL_*` > `saga.toml` > the services of `saga dev up` > the Temporal profile.

A setting `key` of `[table]` is the environment variable `SAGA_TABLE__KEY`; case does not matter, and `-` and `.` in
names are `_`. Its value has the type of the key: text for a string, JSON for the others, and a list may also be
separated by commas. A table is merged with that of the file, key by key at every level, and a reference to a secret
replaces another one. So `SAGA_SPARK__CONF={"spark.ui.port": 4040}` sets one property and leaves the others. An empty
variable counts as not set, except below `SAGA_VARS__`. `definitions` and `actions` have no variable.

A secret is `{ env = "NAME" }` or `{ file = "path" }`. It is read when it is needed and is never printed. A duration is
a number with a unit: `500ms`, `30s`, `5m`, `2h`, `7d`.

Every command that reads the settings, `saga validate` and `saga worker` among them, refuses a wrong value and names its
line, or the variable that it comes from: `saga.toml:7: spark.master must be local[N], …: its port is not a number from
1 to 65535`. The hosts and ports of all addresses are checked: of databases (also in `?host=a:5432&host=b:5432`), HTTP
services, Temporal, brokers, Spark and catalogs. The message never quotes an address, which may contain a password. A
URL that is a secret is checked when it is read. `${NAME}` may stand for a host or a port that a deployment fills in
before the processes start.

`saga schema --settings > settings.schema.json` gives an editor with TOML support (Taplo, Even Better TOML) completion
and the descriptions below. The first line of `saga.toml` tells it where the schema is:

```toml
#:schema ./settings.schema.json
```

## A complete saga.toml

Every key with a value as an example. A project needs very few of them.
"""

_CLIENT = """## `[kafka.client]`

Any [property of librdkafka](https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md), for TLS, SASL and
special networks. A value may be a secret. Files (`ssl.ca.location` and the like) are relative to the project. In the
environment the dots are underscores: `SAGA_KAFKA__CLIENT__SASL_PASSWORD`. `partitioner` is `murmur2_random` unless set:
the partition of a key is the one that Java clients choose.

Values that would weaken a guarantee are refused:

| property | value | why |
|---|---|---|
"""

_CATALOGS = """## `[catalogs.NAME]`

`NAME` is the first part of a table's name: `lake.sales.facts` is the table `sales.facts` in the catalog `lake`. All
properties but `multi_table_commit` are passed to pyiceberg; a property with dots is quoted (`"s3.endpoint" = "…"`).
In the environment: `SAGA_CATALOGS__LAKE__URI`. A variable cannot tell dots from hyphens: it overrides such a property
(`SAGA_CATALOGS__LAKE__S3_ENDPOINT`) only if saga.toml has it. The same holds for `conf` of `[spark]`.

| type | properties |
|---|---|
| `sql`, without `uri` | none: `saga dev up` creates a database for it, and its files are in `.saga/warehouse/NAME` |
| `sql` | `uri` (an SQLAlchemy URL: `postgresql+psycopg://…`) and `warehouse` |
| `rest` | `uri`, and `credential` or `token` if the server requires them; `multi_table_commit = true`, see below |
| `glue`, `hive`, others | those of pyiceberg |

| | `sql` | `rest` | others |
|---|---|---|---|
| atomic commit of one table | yes | yes | yes |
| `publish: together` | yes: one database transaction | with `multi_table_commit = true` | no, refused |

A REST server that offers `transactions/commit` may check all tables first and then commit them one by one, and the
protocol does not tell. So `publish: together` is refused unless the catalog's settings say that its server commits all
tables or none:

```toml
[catalogs.lake]
type = "rest"
uri = "https://catalog.example.com"
multi_table_commit = true
```

Two servers are tested (`tests/integration/spark/sinks/iceberg`), no product among them: one with all tables in one SQL
database and a database transaction for each request, and the same server committing table by table, where readers see a
part until the next attempt, and [`saga reconcile`](../how-to/reconcile.md#findings) reports `published_partly`. The
`RESTCatalogAdapter` of Apache Iceberg, behind its test fixtures and their image, commits table by table, as its source
says. Of any other server ask whether `transactions/commit` is one transaction, not whether it exists.

The worker writes metadata and links or copies files, so it must reach `warehouse` and the location of each table.
`saga doctor` checks each catalog.
"""

_VARS = """## `[vars]`

Any keys with JSON values: expressions read them as `vars.NAME`. Numbers keep their digits: `version = 1.10` is 1.10. In
the environment: `SAGA_VARS__NAME`, which is JSON if it is valid JSON, and a string otherwise (`007`).
"""


def complete_file() -> str:
    """A saga.toml with every key."""
    parts = []
    for table in TABLES:
        header = f"[[{table.heading}]]" if table is EffectTable else f"[{table.heading}]"
        lines = [header] if table.heading else []
        examples = {name: example_of(field) for name, field in keys(table)}
        parts.append("\n".join(lines + [f"{name} = {example}" for name, example in examples.items() if example]))
        if table is KafkaSettings:
            parts.append('[kafka.client]\nsecurity.protocol = "SASL_SSL"\nsasl.password = { env = "KAFKA_PASSWORD" }')
        if table is SparkTable:
            parts.append('[catalogs.lake]\ntype = "rest"\nuri = "https://catalog.shop"')
    parts.append("[vars]\ncommission_rate = 0.05")
    return "\n\n".join(parts) + "\n"


def render() -> str:
    parts = [_HEAD, f"```toml\n{complete_file()}```\n"]
    for table in TABLES:
        parts.append(_section(table))
        if table is KafkaSettings:
            parts.append(_CLIENT + "\n".join(_client_rows()) + "\n")
        if table is SparkTable:
            parts.append(_CATALOGS)
    return "\n".join([*parts, _VARS])


def _section(table: type[Table]) -> str:
    title = table.title or (f"`[{table.heading}]`" if table.heading else "Top level")
    rows = [
        f"| `{name}` | {form_of(field).type} | {_code(default_of(field))} | {_variable(table, name, field)} "
        f"| {field.description} |"
        for name, field in keys(table)
    ]
    head = "| key | type | default | environment variable | meaning |\n|---|---|---|---|---|\n"
    return f"## {title}\n\n{fill(table.summary, 120)}\n\n{head}" + "\n".join(rows) + "\n"


def default_of(field: FieldInfo) -> str:
    """The default as TOML; empty if there is none."""
    default = None if field.is_required() else field.get_default()
    if default is None or default == {} or isinstance(default, Table):
        return ""
    if form_of(field).type == "duration":
        return to_toml(format_duration(default) if default else "0s")
    return to_toml([str(item) for item in default] if isinstance(default, tuple) else default)


def _variable(table: type[Table], name: str, field: FieldInfo) -> str:
    if table in (Settings, EffectTable):
        return ""
    more = (_code(item.name) for item in field.metadata if isinstance(item, Variable))
    return ", ".join([_code(variable_of(table, name)), *more])


def variable_of(table: type[Table], name: str) -> str:
    """The variable of a key; NAME stands for the name of a table that the project chooses."""
    header = f"{table.heading.rpartition('.')[0]}.NAME" if table.title else table.heading
    return "SAGA_" + "__".join([*header.split("."), name]).upper()


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _client_rows() -> list[str]:
    kept = [f"| `{name}` | `{values[0]}` | {why} |" for name, (values, why) in REQUIRED_VALUES.items()]
    return kept + [f"| `{name}` | cannot be set | {why} |" for name, why in ENGINE_PROPERTIES.items()]


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
