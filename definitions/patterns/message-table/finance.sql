create table if not exists budget (
    id   text primary key,
    free integer not null check (free >= 0)
);

create table if not exists booking (
    order_id text not null,              -- no unique key: booking an order twice would show
    amount   integer not null
);

insert into budget values ('orders', 1000) on conflict do nothing;
