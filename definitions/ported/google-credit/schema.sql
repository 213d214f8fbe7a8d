create table if not exists orders (id text primary key, state text not null, reason text);
create table if not exists customer (id text primary key, credit integer not null);

insert into customer values ('anna', 100) on conflict do nothing;
