#!/usr/bin/env bash
# Run every check: format, lint, types, the direction of imports, tests.
#
# Usage: scripts/test.sh [pytest arguments]
#
# Makes a virtual environment first. Without arguments all checks run; with arguments only pytest,
# with these arguments (such as tests/unit, or -k search).
#
# VENV             folder of the environment (default: .venv-test)
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
scripts/venv.sh "$venv" -e . --group dev

run() {
  echo "== $*"
  "$venv/bin/$@"
}

if [ $# -eq 0 ]; then
  run ruff format --check .
  run ruff check .
  run mypy
  run lint-imports
fi
run pytest "$@"
