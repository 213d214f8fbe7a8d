create table if not exists account (
    id      text primary key,
    balance integer not null check (balance >= 0),
    pears   integer not null default 0
);

insert into account values ('rich', 1000), ('poor', 0) on conflict do nothing;
