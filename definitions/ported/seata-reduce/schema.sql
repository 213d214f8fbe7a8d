create table if not exists inventory (sku text primary key, units integer not null);
create table if not exists account (id text primary key, balance integer not null);
create table if not exists parcel (saga_id text primary key, units integer not null);
create table if not exists refusal (saga_id text primary key, account text not null);

insert into inventory values ('tea', 100) on conflict do nothing;
insert into account values ('anna', 100), ('ben', 3) on conflict do nothing;
