create table if not exists cart (id text primary key, item text not null, order_id text);
create table if not exists stock (item text primary key, free integer not null);

insert into cart values ('c1', 'cup', null), ('c2', 'rug', null), ('c3', 'cup', null) on conflict do nothing;
insert into stock values ('cup', 5), ('rug', 0) on conflict do nothing;
