#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/docs.sh BUILD: draws docs/pictures again, puts the table of `foci info` into README.md and
# what its commands say into docs/theory.md, and makes docs/performance.md, docs/roofline.svg,
# docs/results.md, docs/reliability.md and docs/concentration.md with its pictures of bench/results.
set -euo pipefail
build=$1

"$build/tools/draw_pictures" docs/pictures

page=$(python3 tools/performance.py)
printf '%s\n' "$page" >docs/performance.md

results=$(python3 tools/results.py)
printf '%s\n' "$results" >docs/results.md

reliability=$(python3 tools/reliability.py)
printf '%s\n' "$reliability" >docs/reliability.md

picture=$(python3 tools/roofline.py)
printf '%s\n' "$picture" >docs/roofline.svg

"$build/tools/draw_concentration" bench/results/epyc-2core/concentration.json \
  docs/concentration
concentration=$(python3 tools/concentration.py)
printf '%s\n' "$concentration" >docs/concentration.md

table=$(mktemp)
readme=$(mktemp)
trap 'rm -f "$table" "$readme"' EXIT
"$build/foci" info --markdown >"$table"
awk -v table="$table" '
  /^<!-- \/foci info -->/ { inside = 0 }
  !inside
  /^<!-- foci info -->/ { inside = 1; while ((getline line < table) > 0) print line }
' README.md >"$readme"
cmp -s "$readme" README.md || cat "$readme" >README.md

# Between <!-- foci theory ... --> and its end stands what that command prints; it draws too.
theory=$(mktemp)
trap 'rm -f "$table" "$readme" "$theory"' EXIT
awk -v build="$build" '
  /^<!-- \/foci theory -->/ { inside = 0 }
  !inside
  /^<!-- foci theory / {
    inside = 1
    command = build "/" substr($0, 6, length($0) - 9)
    while ((command | getline line) > 0) print line
    close(command)
  }
' docs/theory.md >"$theory"
cmp -s "$theory" docs/theory.md || cat "$theory" >docs/theory.md
