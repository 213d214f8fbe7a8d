-- A small bank with a constant total amount, and the breakpoints of the harness.
create table accounts (id text primary key, balance int not null);
insert into accounts values
    ('customer', 100), ('transit', 0), ('fees', 0), ('merchant', 0), ('carrier', 0), ('marketing', 0);
create table holds (saga_id text not null, amount int not null);
create table orders (saga_id text primary key, state text not null);
create table journal (
    id bigserial primary key, saga_id text not null, step text not null, op text not null,
    generation int not null default 1
);

-- What the test wants the next attempts of an operation to do, one behaviour for each attempt, the last for all that
-- follow: an SQLSTATE to raise, reject, fail, big, large, or ok. Without a saga_id it concerns all sagas.
create table scripted_attempts (step text, op text, does text[] not null, saga_id text);
-- Counts attempts; a sequence is not rolled back.
create sequence attempt_count;

create function breakpoint(point text, step text, op text) returns void language sql as $$
    select pg_advisory_xact_lock_shared(7, hashtext(point || ' ' || step || ' ' || op))
$$;

create function enter(saga_id text, step text, op text, generation int) returns text language plpgsql as $$
declare
    behaviours text[];
    behaviour text;
begin
    insert into journal (saga_id, step, op, generation) values (saga_id, step, op, generation);
    perform breakpoint('effect', step, op);
    select does into behaviours from scripted_attempts c
    where c.step = enter.step and c.op = enter.op and coalesce(c.saga_id, enter.saga_id) = enter.saga_id;
    if behaviours is null then
        return '';
    end if;
    behaviour := behaviours[least(nextval('attempt_count'), array_length(behaviours, 1))];
    if behaviour ~ '^[0-9][0-9A-Z]{4}$' then
        raise exception 'the test raises %', behaviour using errcode = behaviour;
    end if;
    return behaviour;
end $$;

create function before_commit() returns trigger language plpgsql as $$
begin
    perform breakpoint('commit', new.step, new.op);
    return null;
end $$;
create constraint trigger before_commit after insert on journal deferrable initially deferred
    for each row execute function before_commit();

-- Where the events of effects go: nowhere, unless the cell has Kafka. The row that names the operation wins.
create table channels (topic text not null, step text, op text);

-- What a consumer of these events has done: one row for each.
create table noted (id bigserial primary key, saga_id text not null, step text not null, op text not null);

create function before_note() returns trigger language plpgsql as $$
begin
    perform breakpoint('note', new.step, new.op);
    return null;
end $$;
create constraint trigger before_note after insert on noted deferrable initially deferred
    for each row execute function before_note();

create function before_record() returns trigger language plpgsql as $$
declare
    event record;
begin
    for event in
        select step, value::json ->> 'op' as op from saga_outbox_row where shard = new.shard and status = 'NEW'
        and (pg_visible_in_snapshot(xid, new.done) or id <= new.last_id and pg_visible_in_snapshot(xid, new.reading))
        and not pg_visible_in_snapshot(xid, old.done)
        and not (id <= old.last_id and pg_visible_in_snapshot(xid, old.reading))
    loop
        perform breakpoint('record', event.step, event.op);
    end loop;
    return new;
end $$;
create trigger before_record before update of done on saga_relay_progress
    for each row execute function before_record();

-- Requests for locks and releases are operations of the step `locks`.
create function before_lock_commit() returns trigger language plpgsql as $$
begin
    perform breakpoint('commit', 'locks', case new.status when 'closed' then 'undo' else 'do' end);
    return null;
end $$;
create constraint trigger before_lock_commit after insert or update on saga_lock_request deferrable initially deferred
    for each row execute function before_lock_commit();

-- A row of the step `take`, which is compensated automatically. Such a table has no triggers, so the breakpoints are a
-- constraint, whose function is declared stable, and a trigger of the guard.
create function stop_at_change(free int) returns boolean stable language plpgsql as $$
begin
    perform breakpoint('effect', 'take', case when free < 5 then 'do' else 'undo' end);
    return true;
end $$;
create table stock (sku text primary key, free int not null check (stop_at_change(free)), note text);
insert into stock values ('A', 5, 'as planned');

create function before_guard_commit() returns trigger language plpgsql as $$
begin
    perform breakpoint('commit', new.step, new.op);
    return null;
end $$;
create constraint trigger before_guard_commit after insert on saga_guard deferrable initially deferred
    for each row when (new.step = 'take') execute function before_guard_commit();

-- The release of the rows of automatic compensation is an operation of the step `rows`.
create function before_row_release() returns trigger language plpgsql as $$
begin
    perform breakpoint('commit', 'rows', 'undo');
    return null;
end $$;
create constraint trigger before_row_release after delete on saga_row_lock deferrable initially deferred
    for each row execute function before_row_release();
