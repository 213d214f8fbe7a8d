#!/bin/sh
# Create the namespace if it is not there. An existing one keeps its retention.
set -eu

temporal operator cluster health
temporal operator namespace describe --namespace "$NAMESPACE" >/dev/null 2>&1 ||
  temporal operator namespace create --namespace "$NAMESPACE" --retention "$RETENTION"
