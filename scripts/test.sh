#!/usr/bin/env bash
# Run every check: formatting, lint, types, import directions and tests.
#
# Usage: scripts/test.sh [pytest arguments]
#
# Without arguments, this runs all checks. With arguments, it runs only pytest and passes them on:
#
#   scripts/test.sh -m "not slow"    # the fast tests, for the inner loop
#   scripts/test.sh tests/unit -k search
#
# The virtual environment is created on the first run.
#
# VENV                     its folder (default: .venv-test)
# WORKERS                  how many tests run at the same time (default: one per core)
# PYTHON, OOMDOCTOR_TORCH  see scripts/venv.sh
set -euo pipefail

case "${1:-}" in
  -h | --help)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
    exit 0
    ;;
esac

cd "$(dirname "$0")/.."
venv=${VENV:-.venv-test}
bin=$venv/bin
scripts/venv.sh "$venv" -e . --group dev

pytest=("$bin/pytest" -n "${WORKERS:-logical}")
if [ $# -gt 0 ]; then
  exec "${pytest[@]}" "$@"
fi

# The static checks run beside the tests. Each writes to its own file, shown when it ends.
output=$(mktemp -d)
trap 'rm -rf "$output"' EXIT
{
  echo "== ruff format" && "$bin/ruff" format --check . &&
    echo "== ruff check" && "$bin/ruff" check . &&
    echo "== mypy" && "$bin/mypy" &&
    echo "== lint-imports" && "$bin/lint-imports"
} >"$output/static" 2>&1 &
static=$!

failed=0
echo "== pytest"
"${pytest[@]}" | tee "$output/tests" || failed=1
wait "$static" || failed=1
cat "$output/static"
# The last line sums up the tests, whatever ran beside them.
tail -n 1 "$output/tests"
exit "$failed"
