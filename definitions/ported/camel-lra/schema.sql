create table if not exists account (id text primary key, balance integer not null);
create table if not exists seat (key text primary key, train text not null, number integer not null, state text not null);

insert into account values ('anna', 100), ('ben', 5) on conflict do nothing;
