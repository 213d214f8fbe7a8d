#!/bin/sh
# Bring Temporal's two databases, which roles.sh has created, to this server's schema. Repeatable; the connection is in
# SQL_*.
set -eu

for pair in temporal:temporal temporal_visibility:visibility; do
  database=${pair%%:*}
  temporal-sql-tool --db "$database" setup-schema -v 0.0
  temporal-sql-tool --db "$database" update-schema -d "/etc/temporal/schema/postgresql/v12/${pair##*:}/versioned"
done
