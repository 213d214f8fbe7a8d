create table if not exists orders (
    id     text primary key,
    day    text not null,
    amount bigint not null
);

insert into orders values
    ('a', 'monday', 10), ('b', 'monday', 20), ('c', 'tuesday', 30), ('d', 'wednesday', 40), ('e', 'wednesday', 50)
on conflict do nothing;
