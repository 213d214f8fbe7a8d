create table if not exists offer (
    kind text not null,
    city text not null,
    free integer not null check (free >= 0),
    primary key (kind, city)
);
create table if not exists payment (saga_id text primary key, amount integer not null);
create table if not exists notice (saga_id text primary key, customer text not null, reason text not null);

insert into offer values
    ('hotel', 'lima', 9), ('flight', 'lima', 9), ('car', 'lima', 9),
    ('hotel', 'oslo', 9), ('flight', 'oslo', 9), ('car', 'oslo', 0)
on conflict do nothing;
