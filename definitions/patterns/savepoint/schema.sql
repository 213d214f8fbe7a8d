create table if not exists stock (
    product text primary key,
    free    integer not null check (free >= 0),
    taken   integer not null default 0
);

create table if not exists carrier (
    id     text primary key,
    price  integer not null,
    room   integer not null check (room >= 0),
    loaded integer not null default 0
);

create table if not exists choice (
    saga_id text not null,
    carrier text not null references carrier,
    primary key (saga_id, carrier)
);

insert into stock values ('chair', 1000) on conflict do nothing;
insert into carrier values ('bicycle', 1, 2), ('van', 5, 50), ('lorry', 9, 200) on conflict do nothing;
