create table if not exists booking (
    order_id    text not null,           -- no unique key: repairing an order twice would show
    day         text not null,
    amount      bigint not null,
    repaired_by text
);

-- Monday lacks b. Tuesday lacks d, and has x, which nobody ordered. Wednesday lacks all.
insert into booking select * from (values ('a', 'monday', 10, null), ('c', 'tuesday', 30, null), ('x', 'tuesday', 99, null))
    as first_rows where not exists (select from booking);
