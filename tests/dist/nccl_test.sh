#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# nccl_test.sh FOCI: one rank over NCCL trains what a process by itself does.
set -eu
foci=$1
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
"$foci" data make images --out "$room/images" --count 240 --seed 1 >/dev/null
train() {
  "$foci" train images --data "$room/images" --device cuda --dim 64 --depth 2 --heads 1 --patch 14 \
    --batch 20 --steps 6 --optimizer sgd --metric layer-change --quiet "$@"
}
train --run "$room/alone"
RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((22000 + $$ % 8000)) \
  train --run "$room/nccl"
losses() { sed 's/.*"loss":\([0-9.]*\).*/\1/' "$1/metrics.jsonl" | cut -c1-6; }
losses "$room/alone" >"$room/a"
losses "$room/nccl" >"$room/b"
diff "$room/a" "$room/b"
