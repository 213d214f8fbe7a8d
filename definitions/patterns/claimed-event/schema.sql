create table if not exists stock (
    product text primary key,
    free    integer not null check (free >= 0)
);

create table if not exists account (
    id      text primary key,
    balance integer not null check (balance >= 0)
);

create table if not exists payment (
    basket text not null,                -- no unique key: paying a basket twice would show
    amount integer not null
);

insert into stock values ('pear', 1000) on conflict do nothing;
insert into account values ('rich', 1000), ('poor', 0) on conflict do nothing;
