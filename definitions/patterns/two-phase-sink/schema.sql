create table if not exists sale (
    id      integer primary key,
    day     text not null,
    product text not null,
    amount  bigint not null
);

create table if not exists report (
    day     text not null,               -- no unique key: publishing a day twice would show
    product text not null,
    amount  bigint
);

create table if not exists open_till (
    day text primary key
);

create table if not exists closed_day (
    day text primary key
);

insert into sale values
    (1, 'monday', 'pear', 10), (2, 'monday', 'apple', 20), (3, 'monday', 'pear', 5),
    (4, 'tuesday', 'pear', 7), (5, 'wednesday', 'apple', 9), (6, 'wednesday', 'apple', 1)
on conflict do nothing;
insert into open_till values ('tuesday') on conflict do nothing;
