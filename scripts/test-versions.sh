#!/usr/bin/env bash
# Run the tests at both ends of what is supported: the oldest libraries and the newest.
#
# Usage: scripts/test-versions.sh [oldest|newest] [pytest arguments]
#
# The oldest versions stand in scripts/constraints-oldest.txt; the newest are what pip finds today.
# Each end has a virtual environment of its own: .venv-oldest and .venv-newest.
#
# PYTHON, OOMDOCTOR_TORCH  see scripts/venv.sh; the oldest end takes torch==2.6.0 if none is named
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
for end in "${ends[@]}"; do
  venv=.venv-$end
  if [ "$end" = oldest ]; then
    OOMDOCTOR_TORCH=${OOMDOCTOR_TORCH:-torch==2.6.0} \
      scripts/venv.sh "$venv" -c scripts/constraints-oldest.txt -e . --group dev
  else
    scripts/venv.sh "$venv" --upgrade --upgrade-strategy eager -e . --group dev
  fi
  echo "== $end: $("$venv/bin/python" -m pip list --format freeze 2>/dev/null |
    grep -E '^(torch|transformers|accelerate|peft|bitsandbytes|typer|rich)==' | tr '\n' ' ')"
  "$venv/bin/pytest" "$@"
done
