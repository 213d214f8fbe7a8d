create table if not exists booking (
    order_id    text not null,           -- no unique key: repairing an order twice would show
    day         text not null,
    amount      bigint not null,
    repaired_by text
);

-- Monday lacks an order, tuesday has one that nobody placed, wednesday lacks all.
insert into booking select * from (values ('a', 'monday', 10, null), ('c', 'tuesday', 30, null), ('x', 'tuesday', 99, null))
    as first_rows where not exists (select from booking);
