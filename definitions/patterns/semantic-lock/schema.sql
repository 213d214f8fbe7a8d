create table if not exists account (
    id      text primary key,
    balance integer not null
);

create table if not exists entry (
    saga_id text primary key,
    account text not null references account,
    amount  integer not null
);

insert into account values ('anna', 1000), ('ben', 1000) on conflict do nothing;
