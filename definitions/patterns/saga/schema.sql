create table if not exists account (
    id      text primary key,
    balance integer not null check (balance >= 0)
);

create table if not exists statement (
    saga_id text primary key,
    line    text not null
);

insert into account values ('anna', 100), ('ben', 100) on conflict do nothing;
