create table if not exists stock (item text primary key, free integer not null);
create table if not exists truck (id text primary key, item text not null unique);
create table if not exists payment (order_id text primary key, amount integer not null);
create table if not exists shipment (order_id text primary key, truck text not null);

insert into stock values ('pen', 10), ('piano', 1) on conflict do nothing;
insert into truck values ('t1', 'pen') on conflict do nothing;
