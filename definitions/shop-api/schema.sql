create table if not exists orders (
    id       text primary key,
    product  text not null,
    quantity integer not null check (quantity > 0),
    state    text not null default 'new'
);

create table if not exists stock (
    product  text primary key,
    on_shelf integer not null check (on_shelf >= 0)
);

insert into stock values ('apple', 100), ('pear', 100) on conflict do nothing;
