#!/bin/sh
# The default model and its head into a folder, /models unless named: what is there and whole is left alone.
set -eu
folder=${1:-/models}
cp -R /opt/paceline/models/. "$folder/"
# --tokenizer-only: all that a router needs.
test "${2:-}" = --tokenizer-only || exec python -m paceline.fetch --to "$folder/smollm2-135m"
