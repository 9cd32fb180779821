#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh MODULE FILE: pytest over FILE with the first python that has pytest and MODULE. Exit 5,
# which ctest takes for skipped, where none has.
set -euo pipefail
cd "$(dirname "$0")"
export PYTHONDONTWRITEBYTECODE=1
for python in ${FOCI_PYTHON:-} python3 /usr/bin/python3; do
  if "$python" -c "import pytest, $1" 2>/dev/null; then
    exec "$python" -m pytest -q -p no:cacheprovider "$2"
  fi
done
echo "skipped: no python3 here has pytest and $1 (tools/setup.sh build browser installs both)"
exit 5
