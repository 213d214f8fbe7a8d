#!/bin/bash
# Run by the image once, on an empty data folder: a role for Temporal and one for each participant. A role owns its
# databases, and can connect to no other.
set -euo pipefail

psql --username postgres --set ON_ERROR_STOP=1 \
  --set temporal_password="$TEMPORAL_DB_PASSWORD" \
  --set shop_password="$SHOP_DB_PASSWORD" --set finance_password="$FINANCE_DB_PASSWORD" <<'SQL'
create role temporal login password :'temporal_password';
create role shop login password :'shop_password';
create role finance login password :'finance_password';
create database temporal owner temporal;
create database temporal_visibility owner temporal;
create database shop owner shop;
create database finance owner finance;
revoke connect, temporary on database postgres, template1, temporal, temporal_visibility, shop, finance from public;
SQL
