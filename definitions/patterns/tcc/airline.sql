create table if not exists flight (
    id   text primary key,
    free integer not null check (free >= 0),
    held integer not null default 0 check (held >= 0),
    sold integer not null default 0
);

insert into flight values ('oslo', 10) on conflict do nothing;
