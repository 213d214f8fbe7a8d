-- The books of the shop. Repeatable: `saga dev up` and `saga setup` apply it every time.
-- Money is exact (numeric), goods are whole units, and what can be said as a constraint is one.

create table if not exists stock (
    sku      text primary key,
    product  text not null,
    initial  integer not null,                          -- units delivered to the shop
    on_shelf integer not null check (on_shelf >= 0),
    reserved integer not null default 0 check (reserved >= 0),
    sold     integer not null default 0 check (sold >= 0),
    constraint every_unit_is_somewhere check (initial = on_shelf + reserved + sold)
);

create table if not exists reservation (                -- a row is here exactly as long as the units are held
    basket_id text not null,
    sku       text not null references stock,
    quantity  integer not null check (quantity > 0),
    amount    numeric(10, 2) not null check (amount >= 0),
    primary key (basket_id, sku)
);

create table if not exists coupon (                     -- sent to one household, good for one redemption
    household_id text not null,
    campaign     text not null,
    upc          text not null,
    used_on      date,                                  -- before this week; null: not used then
    redeemed_by  text,                                  -- a basket of this week; null: none
    primary key (household_id, campaign, upc)
);

create table if not exists redemption (
    basket_id    text not null,
    household_id text not null,
    campaign     text not null,
    upc          text not null,
    value        numeric(10, 2) not null check (value >= 0),
    primary key (basket_id, campaign, upc),
    foreign key (household_id, campaign, upc) references coupon
);

create table if not exists account (
    household_id   text primary key,
    spending_limit numeric(12, 2) not null,
    available      numeric(12, 2) not null check (available >= 0),
    held           numeric(12, 2) not null default 0 check (held >= 0),
    charged        numeric(12, 2) not null default 0 check (charged >= 0),
    constraint every_cent_is_somewhere check (spending_limit = available + held + charged)
);

create table if not exists charge (
    id           text primary key,                      -- the key of the step that made it
    household_id text not null references account,
    basket_id    text not null,
    amount       numeric(12, 2) not null check (amount >= 0),
    state        text not null check (state in ('held', 'voided', 'charged', 'refunded'))
);

create table if not exists orders (
    order_id     bigint generated always as identity primary key,
    basket_id    text not null unique,
    household_id text not null,
    charge_id    text not null unique references charge,
    total        numeric(12, 2) not null,
    state        text not null check (state in ('draft', 'placed', 'packed', 'collected'))
);

create table if not exists order_line (
    order_id bigint not null references orders on delete cascade,
    sku      text not null references stock,
    quantity integer not null,
    amount   numeric(10, 2) not null,
    primary key (order_id, sku)
);

create table if not exists carrier (
    name      text primary key,
    max_units integer not null check (max_units > 0)    -- the largest order it can take
);

create table if not exists shipment (
    order_id bigint primary key references orders,
    carrier  text not null references carrier,
    units    integer not null
);

create table if not exists announcement (
    order_id bigint primary key references orders,
    text     text not null
);

create table if not exists delivery_slot (
    slot     text primary key,
    capacity integer not null,
    booked   integer not null default 0 check (booked between 0 and capacity)
);

create table if not exists slot_booking (
    basket_id text primary key,
    slot      text not null references delivery_slot
);

create table if not exists gift (                       -- one for a household, as long as they last
    name     text primary key,
    initial  integer not null,
    on_shelf integer not null check (on_shelf >= 0)
);

create table if not exists gift_given (
    household_id text primary key,
    gift         text not null references gift,
    basket_id    text not null
);

create table if not exists receipt (                    -- what the tills have printed: written once, never changed
    basket_id text primary key,
    day       date not null,
    store_id  integer not null,
    week      integer not null                          -- of the data set: 1 to 53
);

create table if not exists receipt_line (
    basket_id text not null references receipt,
    sku       text not null,
    quantity  integer not null,
    amount    numeric(10, 2) not null,
    primary key (basket_id, sku)
);

create table if not exists agency (                     -- places the promotions, for a commission on what is sold
    name      text primary key,
    day_limit numeric(12, 2) not null                   -- the most that it gets for one day
);

create table if not exists commission (
    id     text primary key,                            -- the key of the step that paid it
    day    date not null,
    agency text not null references agency,
    amount numeric(12, 2) not null check (amount >= 0),
    state  text not null check (state in ('paid', 'reclaimed'))
);

create table if not exists finance_note (               -- what finance was told about a day
    id         text primary key,                        -- the key of the step that wrote it
    saga_id    text not null,
    day        date not null,
    sales      numeric(12, 2) not null,
    commission numeric(12, 2) not null,
    state      text not null check (state in ('drafted', 'sent', 'corrected'))
);
