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
# The virtual environments are created on the first run: one for the tests, one with a CUDA build of
# torch for the tests on the emulated GPU, and one with the training programs of --from. The tests
# that need the second or the third are skipped where it cannot be made. The packages of
# oomdoctor.pyz are downloaded into build/pyz.
#
# VENV                     the folder of the first (default: .venv-test)
# CUDA_VENV                that of the second (default: .venv-cuda)
# STACKS_VENV              that of the third (default: .venv-stacks)
# UNSLOTH_VENV             that of one with Unsloth, above the second (default: .venv-unsloth)
# OOMDOCTOR_CUDA_PYTHON    an interpreter to use instead of the second
# OOMDOCTOR_STACKS_PYTHON  an interpreter to use instead of the third
# BROWSER                  1: install Chromium and Firefox, if missing, for the tests of pages
# SLURM                    1: install Slurm, if there is none, for the tests of jobs
# OOMDOCTOR_UNSLOTH_PYTHON  an interpreter to use instead of the one with Unsloth
# OOMDOCTOR_REQUIRE_CUDA_PYTHON  1: fail if the second or the one with Unsloth cannot be made
# OOMDOCTOR_REQUIRE_STACKS_PYTHON  1: fail if the third cannot be made
# WEEKLY                   1: run also the rows of tests that are marked weekly
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
# The tests start hundreds of processes, each of which would compile its modules.
unset PYTHONDONTWRITEBYTECODE
venv=${VENV:-.venv-test}
bin=$venv/bin
made=0
programs=0
if [ "${BROWSER:-}" = 1 ] || [ "${SLURM:-}" = 1 ]; then
  # One after the other: apt does only one thing at a time.
  {
    [ "${BROWSER:-}" != 1 ] || scripts/chromium.sh ||
      echo "warning: no browser for the tests of pages" >&2
    [ "${SLURM:-}" != 1 ] || scripts/slurm-cluster.sh install ||
      echo "warning: no Slurm for the tests of jobs" >&2
  } &
  programs=$!
fi
if [ -z "${OOMDOCTOR_CUDA_PYTHON:-}" ]; then
  cuda_venv=${CUDA_VENV:-.venv-cuda}
  export OOMDOCTOR_CUDA_PYTHON=$PWD/$cuda_venv/bin/python
  unsloth_venv=${UNSLOTH_VENV:-.venv-unsloth}
  export OOMDOCTOR_UNSLOTH_PYTHON=${OOMDOCTOR_UNSLOTH_PYTHON:-$PWD/$unsloth_venv/bin/python}
  { scripts/cuda-venv.sh "$cuda_venv" && scripts/unsloth-venv.sh "$unsloth_venv" "$cuda_venv"; } &
  made=$!
fi
scripts/venv.sh "$venv" -e . --group dev
if [ $# -eq 0 ]; then
  # The static checks run beside all that follows, and are shown at the end.
  output=$(mktemp -d)
  trap 'rm -rf "$output"' EXIT
  {
    echo "== ruff format" && "$bin/ruff" format --check . &&
      echo "== ruff check" && "$bin/ruff" check . &&
      echo "== mypy" && "$bin/mypy" &&
      echo "== lint-imports" && "$bin/lint-imports"
  } >"$output/static" 2>&1 &
  static=$!
fi
if [ -z "${OOMDOCTOR_STACKS_PYTHON:-}" ]; then
  stacks_venv=${STACKS_VENV:-.venv-stacks}
  export OOMDOCTOR_STACKS_PYTHON=$PWD/$stacks_venv/bin/python
  if ! scripts/stacks-venv.sh "$stacks_venv" "$venv"; then
    echo "warning: no environment with the training programs of --from" >&2
    [ "${OOMDOCTOR_REQUIRE_STACKS_PYTHON:-}" != 1 ] || exit 1
  fi
fi
"$bin/python" scripts/build_pyz.py --packages >/dev/null
if [ "$made" != 0 ] && ! wait "$made"; then
  echo "warning: no environment for the emulated GPU" >&2
  [ "${OOMDOCTOR_REQUIRE_CUDA_PYTHON:-}" != 1 ] || exit 1
fi
[ "$programs" = 0 ] || wait "$programs"

pytest=("$bin/pytest" -n "${WORKERS:-logical}")
[ "${WEEKLY:-}" != 1 ] || pytest+=(--weekly)
if [ $# -gt 0 ]; then
  exec "${pytest[@]}" "$@"
fi

failed=0
echo "== pytest"
"${pytest[@]}" | tee "$output/tests" || failed=1
wait "$static" || failed=1
cat "$output/static"
# The last line sums up the tests, whatever ran beside them.
tail -n 1 "$output/tests"
exit "$failed"
