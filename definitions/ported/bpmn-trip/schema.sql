create table if not exists booking (trip text not null, what text not null, primary key (trip, what));
create table if not exists flight (id text primary key, seats integer not null);

insert into flight values ('early', 10), ('late', 0) on conflict do nothing;
