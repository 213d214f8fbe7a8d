create table if not exists stock (
    product text primary key,
    free    integer not null check (free >= 0),
    taken   integer not null default 0
);

insert into stock values ('bicycle', 10) on conflict do nothing;
