"""Random tables, rows and steps with `compensate: auto`, for each database; the same seed gives the same ones."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# Literals of each type. Those in one inner list are equal for the database, but written differently.
Values = Sequence[Sequence[str]]

POSTGRESQL: Mapping[str, Values] = {
    "int": [["0"], ["1"], ["-7"], ["2147483647"]],
    "bigint": [["9007199254740993"], ["9007199254740992"], ["-1"]],
    "numeric": [["1.0", "1.00", "1"], ["123456789012345678901234567890.123456789"], ["'NaN'"], ["'Infinity'"]],
    "numeric(12, 3)": [["1.5", "1.500"], ["-0.001"], ["0"]],
    "text": [["'a'"], ["'A'"], ["''"], ["'it''s \\ %s :x'"], ["E'\\t\\n'"], ["'ß'"], ["'ss'"]],
    "varchar(20)": [["'x'"], ["'x '"], ["'Ä'"]],
    "char(6)": [["'x'", "'x  '"], ["' x'"], ["''"]],
    "float8": [["0", "'-0'"], ["'NaN'", "'nan'"], ["0.1"], ["1e308"], ["'-Infinity'"], ["5e-324"]],
    "real": [["'0.1'"], ["'16777217'", "'16777216'"], ["'-0'", "0"]],
    "timestamptz": [["'2026-10-25 00:30+00'", "'2026-10-25 02:30+02'"], ["'2026-10-25 01:30+00'"], ["'infinity'"],
                    ["'0044-03-15 12:00 BC'"], ["'12026-01-01 00:00:00.000001+00'"]],
    "timestamp": [["'2026-03-29 02:30'"], ["'-infinity'"], ["'1900-01-01 00:00:00.5'"]],
    "date": [["'2026-02-03'"], ["'infinity'"], ["'0001-01-01 BC'"]],
    "time": [["'24:00'"], ["'00:00:00.000001'"]],
    "interval": [["'1 day'", "'24 hours'"], ["'1 mon'", "'30 days'"], ["'-1 mon 2 days -03:04:05.6'"], ["'0'"]],
    "uuid": [["'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "'a0eebc999c0b4ef8bb6d6bb9bd380a11'"],
             ["'00000000-0000-0000-0000-000000000000'"]],
    "bytea": [["'\\x00ff'"], ["'\\x'"], ["'abc'"]],
    "boolean": [["true"], ["false"]],
    "jsonb": [["'{\"a\": 1, \"b\": 2}'", "'{\"b\": 2.0, \"a\": 1.00}'"], ["'null'"], ["'[1e400, \"\\u00e4\"]'"]],
    "inet": [["'10.0.0.1'", "'10.0.0.1/32'"], ["'::1'"], ["'10.0.0.1/8'"]],
    "numeric[]": [["'{1.0,2}'", "'{1,2.00}'"], ["'{}'"], ["'{NULL}'"], ["'{{1},{2}}'"]],
    "numrange": [["'[1.0,2)'", "'[1,2.0)'"], ["'empty'"], ["'(,)'"]],
    "money": [["'1.50'", "1.50"], ["'-0.01'"]],
    "bit(4)": [["B'0101'"], ["B'0000'"]],
    "macaddr": [["'08:00:2b:01:02:03'", "'08-00-2B-01-02-03'"]],
    "mood": [["'sad'"], ["'glad'"]],
    "amount": [["1.0", "1.00"], ["2.5"]],
    "pair": [["'(1.0,x)'", "'(1,x)'"], ["'(,)'"]],
}  # fmt: skip
POSTGRESQL_OTHER: Mapping[str, Values] = {
    "json": [["'{\"b\":  1}'"]],
    "point": [["'(1,2.5)'"]],
    "tsvector": [["'a b''c'"]],
    "regclass": [["'pg_class'"]],
    "name": [["'n'"]],
    '"char"': [["'c'"]],
    "oid": [["7"]],
}
MARIADB: Mapping[str, Values] = {
    "int": [["0"], ["1"], ["-7"]],
    "int unsigned": [["4294967295"], ["1"]],
    "bigint": [["9007199254740993"], ["9007199254740992"]],
    "bigint unsigned": [["18446744073709551615"], ["18446744073709551614"]],
    "decimal(12, 3)": [["1.5", "1.500"], ["-0.001"], ["0"], ["100"]],
    "decimal(38, 0)": [["12345678901234567890123456789012345678"], ["12345678901234567890123456789012345679"]],
    "varchar(20)": [["'Ada'", "'aDA '"], ["'ß'"], ["''"], ["'it''s %s'"]],
    "varchar(20) collate utf8mb4_unicode_ci": [["'Straße'", "'STRASSE'"], ["'a'", "'A'"], ["'🚲'"]],
    "varchar(20) collate utf8mb4_bin": [["'a'", "'a '"], ["'A'"]],
    "varchar(20) collate utf8mb4_nopad_bin": [["'a'"], ["'a '"]],
    "varchar(20) character set latin1": [["'é'", "'E'"], ["'x'"]],
    "varchar(20) character set sjis": [["'ア'"], ["'x'"]],
    "char(6)": [["'x'", "'X  '"], ["''"]],
    "double": [["0e0", "-0e0"], ["0.1e0"], ["1e308"], ["5e-324"]],
    "float": [["16777216"], ["0.1"]],
    "datetime(3)": [["'2026-10-25 00:30:00.5'", "'2026-10-25 00:30:00.500'"], ["'0000-00-00 00:00:00'"],
                    ["'2026-03-29 02:30:00'"]],
    "timestamp(2) null": [["'2026-10-25 00:30:00'"], ["'2026-10-25 01:30:00'"], ["'1970-01-01 00:00:01'"]],
    "date": [["'2026-02-03'"], ["'0000-00-00'"], ["'2026-02-00'"]],
    "time(2)": [["'838:59:59'"], ["'-00:00:01.5'"]],
    "year": [["2026"], ["'0000'"]],
    "enum('x', 'y')": [["'x'", "1", "'X'"], ["'y'"]],
    "set('x', 'y')": [["'x,y'", "'y,x'", "3"], ["''"]],
    "bit(9)": [["b'101'", "5"], ["0"]],
    "binary(2)": [["x'00ff'"], ["'ab'"]],
    "varbinary(8)": [["x'00'"], ["''"]],
    "uuid": [["'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "'a0eebc999c0b4ef8bb6d6bb9bd380a11'"]],
    "inet6": [["'::1'", "'0:0:0:0:0:0:0:1'"]],
}  # fmt: skip
MARIADB_OTHER: Mapping[str, Values] = {
    "json": [["'{\"b\":  1}'"]],
    "longtext": [["'x '"]],
    "blob": [["x'00ff27'"]],
}
SQLITE: Mapping[str, Values] = {
    "integer": [["1", "1.0", "'1'"], ["0"], ["9007199254740993"], ["'text'"]],
    "numeric": [["1.5", "'1.50'"], ["1", "'1.0'"], ["x'00'"]],
    "text": [["'a'"], ["'A'"], ["'a '"], ["1", "'1'"], ["''"]],
    "text collate nocase": [["'Ada'", "'aDA'"], ["'ä'"], ["'Ä'"]],
    "text collate rtrim": [["'a'", "'a  '"], ["'b'"]],
    "blob": [["1", "1.0"], ["'1'"], ["x'31'"], ["-0.0", "0"]],
    "real": [["0.1"], ["1", "1.0"], ["1e400"], ["0", "-0.0"]],
    "": [["5"], ["'5'"], ["9223372036854775807"], ["9.2233720368547758e18"]],
}
SQLITE_OTHER: Mapping[str, Values] = {"any_name": [["null"], ["7"]]}

TREES = {"postgres": ("int", "text"), "mariadb": ("int", "varchar(20)"), "sqlite": ("integer", "text")}
"""Types of the keys of larger tables, whose rows refer to each other."""

KEYS = {"postgres": POSTGRESQL, "mariadb": MARIADB, "sqlite": SQLITE}
OTHERS = {"postgres": POSTGRESQL_OTHER, "mariadb": MARIADB_OTHER, "sqlite": SQLITE_OTHER}
TYPES = [
    "create type @mood as enum ('sad', 'glad')",
    "create domain @amount as numeric check (value > 0)",
    "create type @pair as (n numeric, t text)",
]
"""The types of PostgreSQL that the tables use."""


@dataclass
class GeneratedStep:
    """One table, its rows, and the statements of one step. ``types`` are those of its columns."""

    kind: str
    seed: int
    types: dict[str, str] = field(default_factory=dict)
    create: list[str] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    after_rows: list[str] = field(default_factory=list)
    statements: list[str] = field(default_factory=list)


def generate(kind: str, seed: int) -> GeneratedStep:
    """The step of one seed."""
    return _Generator(kind, seed).step


class _Generator:
    def __init__(self, kind: str, seed: int) -> None:
        self.kind, self.chance = kind, random.Random(f"{kind} {seed}")
        self.step = GeneratedStep(kind, seed)
        self._types = {**KEYS[kind], **OTHERS[kind]}
        self.keys = [f"k{at}" for at in range(self.chance.choice((1, 1, 1, 2)))]
        for name in self.keys:
            self.step.types[name] = self.chance.choice(list(KEYS[kind]))
        self.others = [f"c{at}" for at in range(self.chance.randrange(3))]
        for name in self.others:
            self.step.types[name] = self.chance.choice(list(self._types))
        self.numbered = self.chance.random() < 0.6
        self.tree = self.chance.random() < 0.3
        if self.tree:  # its keys are distinct
            self.keys = self.keys[:1]
            self.step.types.pop("k1", None)
            self.step.types["k0"] = self.chance.choice(TREES[kind])
        self.parent = self.tree or (self.chance.random() < 0.2 and len(self.keys) == 1 and self._may_refer())
        self._create()
        self._rows()
        self.step.statements = [self._statement() for _ in range(self.chance.choice((1, 1, 2, 3)))]

    def _may_refer(self) -> bool:
        return not any(word in self.step.types["k0"] for word in ("@", "timestamp"))

    def _create(self) -> None:
        chance, columns, clauses = self.chance, [], []
        for name, kind in self.step.types.items():
            written = f"@{kind}" if kind in ("mood", "amount", "pair") else kind
            columns.append(f"{name} {written}" + (" not null" if name in self.keys else ""))
        columns.append("n int default 3")
        later = (
            chance.choice(("", "", " deferrable", " deferrable initially deferred")) if self.kind == "postgres" else ""
        )
        if self.numbered:
            columns.append(f"pos int unique{later}" + chance.choice(("", " not null")))
        if self.parent:
            written = columns[0].removeprefix("k0 ").removesuffix(" not null")
            columns.append(f"parent {written}")
            reference = "references @t (k0)"
            clauses.append(f"foreign key (parent) {reference}{later if later else ''}")
        if chance.random() < 0.3:
            columns.append("twice int generated always as (n * 2) stored")
        if chance.random() < 0.3:
            clauses.append("check (n >= -100)")
        if self.kind == "postgres" and chance.random() < 0.15:
            columns.append("span int4range")
            clauses.append(f"exclude using gist (span with &&){later}")
        if self.kind == "postgres" and chance.random() < 0.15:
            columns.append("line int generated always as identity")
        if self.kind == "mariadb" and chance.random() < 0.2:
            columns.append("seen timestamp default current_timestamp on update current_timestamp")
        if self.kind == "postgres" and chance.random() < 0.2:  # rows may violate it, but may not be written again
            self.step.after_rows = ["alter table @t add constraint late check (n >= 0) not valid"]
        clauses.insert(0, f"primary key ({', '.join(self.keys)})")
        tail = " without rowid" if self.kind == "sqlite" and chance.random() < 0.3 else ""
        self.step.create = [f"create table @t ({', '.join([*columns, *clauses])}){tail}"]

    def _value(self, name: str, *, null: bool = True) -> str:
        kind = self.step.types[name]
        if null and name not in self.keys and self.chance.random() < 0.2:
            return "null"
        return self.chance.choice(self.chance.choice(self._types[kind]))

    def _rows(self) -> None:
        parents: list[str] = []
        fresh = self.chance.sample(range(10, 99), 8)
        positions = self.chance.sample(range(1, 9), 8)
        for at in range(self.chance.randrange(3, 8) if self.tree else self.chance.randrange(1, 6)):
            columns = list(self.step.types)
            values = [self._value(name) for name in columns]
            if self.tree:
                values[0] = f"{fresh[at]}" if self.step.types["k0"].startswith("int") else f"'{fresh[at]}'"
            if self.numbered:
                columns.append("pos")
                values.append(str(positions[at]))
            if self.parent and self.chance.random() < 0.8:  # also of itself
                columns.append("parent")
                values.append(self.chance.choice([*parents, *parents, values[0]]))
            parents.append(values[0])
            columns.append("n")
            values.append(str(self.chance.choice((-101, 0, 1, 5))))
            self.step.rows.append(f"insert into @t ({', '.join(columns)}) values ({', '.join(values)})")

    def _condition(self) -> str:
        choice = self.chance.randrange(5)
        if choice == 0 or (self.tree and self.chance.random() < 0.5):
            return ""
        if choice == 1:
            return f" where n >= {self.chance.randrange(3)}"
        if choice == 2 and self.numbered:
            return f" where pos >= {self.chance.randrange(1, 4)}"
        name = self.keys[0]
        return f" where {name} = {self._compared(name)}"

    def _compared(self, name: str) -> str:
        kind = self.step.types[name]
        written = f"@{kind}" if kind in ("mood", "amount", "pair") else kind
        value = self._value(name)
        return f"cast({value} as {written})" if self.kind == "postgres" else value

    def _statement(self) -> str:
        chance = self.chance
        choice = chance.randrange(-2 if self.numbered else 0, 10)
        if choice < 0:
            choice = 5
        if choice <= 2:
            return f"delete from @t{self._condition()}"
        if choice <= 4:
            return f"update @t set {self._assignment()}{self._condition()}"
        if choice == 5 and self.numbered:
            change = chance.choice(
                ("pos + 1", "pos - 1", "10 - pos", "case pos when 1 then 2 when 2 then 1 else pos end")
            )
            return f"update @t set pos = {change}{self._condition()}"
        if choice == 6:
            return f"update @t set k0 = {self._value('k0')}{self._condition()}"
        columns = [name for name in self.step.types if name in self.keys or chance.random() < 0.8]
        values = [self._value(name) for name in columns]
        if self.numbered:
            columns.append("pos")
            values.append(str(chance.randrange(20, 200)))
        insert = f"insert into @t ({', '.join(columns)}) values ({', '.join(values)})"
        if choice == 7:
            clause = f"on conflict ({', '.join(self.keys)}) do update set n = 4"
            return f"{insert} {'on duplicate key update n = 4' if self.kind == 'mariadb' else clause}"
        return insert

    def _assignment(self) -> str:
        parts = [f"n = {self.chance.choice(('n + 1', '7', 'null'))}"]
        parts += [f"{name} = {self._value(name)}" for name in self.others if self.chance.random() < 0.6]
        if self.parent and self.chance.random() < 0.4:
            parts.append(f"parent = {self._value('k0')}")
        return ", ".join(parts)
