create table if not exists server (id text primary key, room integer not null check (room >= 0));
create table if not exists disk (id text primary key, size integer not null, state text not null);

insert into server values ('s1', 100), ('s2', 100), ('s3', 100), ('s4', 10) on conflict do nothing;
