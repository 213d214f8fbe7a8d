create table if not exists account (
    id      text primary key,
    balance integer not null check (balance >= 0)
);

create table if not exists payment (
    order_id text primary key,
    account  text not null references account,
    amount   integer not null
);

insert into account values ('rich', 1000), ('poor', 1) on conflict do nothing;
