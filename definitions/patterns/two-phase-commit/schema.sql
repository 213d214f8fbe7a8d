create table if not exists stock (
    product text primary key,
    free    integer not null check (free >= 0)
);

insert into stock values ('pear', 100) on conflict do nothing;
