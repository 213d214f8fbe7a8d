-- The books of finance, in a database of their own. Repeatable, as schema.sql.

create table if not exists booking (                    -- one for each order event
    order_id  bigint primary key,                       -- a second booking of an order would be refused
    basket_id text not null,
    amount    numeric(12, 2) not null check (amount >= 0),
    event_id  text not null unique,
    saga_id   text not null,
    booked_at timestamptz not null default now()
);
