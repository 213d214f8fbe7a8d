#!/bin/bash
# Run by the image once, on an empty data folder: one role for Temporal, one role with its databases for the participants.
set -euo pipefail

psql --username postgres --set ON_ERROR_STOP=1 \
  --set temporal_password="$TEMPORAL_DB_PASSWORD" --set shop_password="$SHOP_DB_PASSWORD" <<'SQL'
create role temporal login createdb password :'temporal_password';
create role shop login password :'shop_password';
create database shop owner shop;
create database finance owner shop;
SQL
