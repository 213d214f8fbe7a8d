create table if not exists orders (id text primary key, portions integer not null, state text not null);
create table if not exists ticket (order_id text primary key, portions integer not null, pending integer);
create table if not exists card (order_id text primary key, authorised integer not null, most integer not null);

insert into orders values ('lunch', 2, 'APPROVED') on conflict do nothing;
insert into ticket values ('lunch', 2, null) on conflict do nothing;
insert into card values ('lunch', 18, 50) on conflict do nothing;
