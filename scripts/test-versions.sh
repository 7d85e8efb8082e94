#!/usr/bin/env bash
# Run the tests with the oldest supported libraries, the newest ones, or both.
#
# Usage: scripts/test-versions.sh [oldest|newest] [pytest arguments]
#
# scripts/constraints-oldest.txt lists the oldest versions. The newest are what pip finds today. TRL
# needs a newer transformers than the oldest, so the tests with it are skipped there.
# Each has a virtual environment: .venv-oldest and .venv-newest.
#
# WORKERS                  how many tests run at the same time (default: one per core)
# PYTHON, OOMDOCTOR_TORCH  see scripts/venv.sh (with the oldest, torch defaults to torch==2.6.0)
set -euo pipefail

ends=(oldest newest)
case "${1:-}" in
  -h | --help)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
    exit 0
    ;;
  oldest | newest)
    ends=("$1")
    shift
    ;;
esac

cd "$(dirname "$0")/.."
failed=0
for end in "${ends[@]}"; do
  venv=.venv-$end
  if [ "$end" = oldest ]; then
    OOMDOCTOR_TORCH=${OOMDOCTOR_TORCH:-torch==2.6.0} \
      scripts/venv.sh "$venv" -c scripts/constraints-oldest.txt -e . --group oldest
  else
    scripts/venv.sh "$venv" --upgrade --upgrade-strategy eager -e . --group dev
  fi
  echo "== $end: $("$venv/bin/python" -m pip list --format freeze 2>/dev/null |
    grep -E '^(torch|transformers|accelerate|peft|bitsandbytes|typer|rich)==' | tr '\n' ' ')"
  "$venv/bin/pytest" -n "${WORKERS:-logical}" "$@" || failed=1
done
exit "$failed"
