create table if not exists orders (
    id     text primary key,
    day    text not null,
    amount bigint not null
);

insert into orders values
    ('a', 'monday', 10), ('b', 'monday', 20), ('c', 'tuesday', 30), ('d', 'tuesday', 40),
    ('e', 'wednesday', 50), ('f', 'wednesday', 60)
on conflict do nothing;
