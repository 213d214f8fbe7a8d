create table if not exists orders (
    id     text primary key,
    amount integer not null,
    state  text not null default 'placed'
);
