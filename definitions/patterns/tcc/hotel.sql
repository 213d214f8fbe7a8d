create table if not exists room (
    id   text primary key,
    free integer not null check (free >= 0),
    held integer not null default 0 check (held >= 0),
    sold integer not null default 0
);

insert into room values ('oslo', 10), ('bergen', 0) on conflict do nothing;
