#!/usr/bin/env bash
# Create or update a virtual environment with oomdoctor in it. The other scripts call this one.
#
# Usage: scripts/venv.sh FOLDER ["pip install" arguments]
#
# PYTHON           the interpreter (default: the first of python3, python3.13, python3.12 and
#                  python3.11 that is 3.11 or newer)
# OOMDOCTOR_TORCH  the torch to install instead of the pinned one: a requirement such as
#                  "torch==2.9.1", or "any" to let pip choose
#
# Does nothing if the environment was already built from the same inputs.
set -euo pipefail

case "${1:---help}" in
  -h | --help)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
    exit 0
    ;;
esac

cd "$(dirname "$0")/.."
venv=$1
shift

is_new_enough() {
  "$1" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

python=${PYTHON:-}
if [ -z "$python" ]; then
  for candidate in python3 python3.13 python3.12 python3.11; do
    if is_new_enough "$candidate"; then
      python=$candidate
      break
    fi
  done
fi
if [ -z "$python" ] || ! is_new_enough "$python"; then
  if [ -n "$python" ]; then
    echo "error: $python is not Python 3.11 or newer with the venv module" >&2
  else
    echo "error: found no Python 3.11 or newer with the venv module" >&2
  fi
  echo "hint:  install one and run: PYTHON=/path/to/python3 $0 $venv" >&2
  exit 5
fi

constraints=()
case "${OOMDOCTOR_TORCH:-}" in
  "") constraints=(-c scripts/constraints.txt) ;;
  any) ;;
  *)
    own=$(mktemp)
    trap 'rm -f "$own"' EXIT
    echo "$OOMDOCTOR_TORCH" >"$own"
    constraints=(-c "$own")
    ;;
esac

stamp=$(
  {
    "$python" -V
    echo "$@" "${OOMDOCTOR_TORCH:-}"
    cat pyproject.toml scripts/constraints*.txt
    # An editable install follows the sources. Any other has to be built again.
    case " $* " in
      *" -e "*) ;;
      *) find oomdoctor recipes -type f ! -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum ;;
    esac
  } | sha256sum | cut -d' ' -f1
)
if [ -x "$venv/bin/python" ] && [ "$(cat "$venv/.inputs" 2>/dev/null)" = "$stamp" ]; then
  exit 0
fi

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
# pip supports dependency groups since 25.1.
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile \
  ${constraints[@]+"${constraints[@]}"} "$@"
# On all cores, which pip does not do, and without half of it, of which little is ever imported. Some
# files of packages are not meant to be compiled.
"$venv/bin/python" -m compileall -q -j 0 -x 'transformers/models/|/tests/|/testing/' \
  "$venv/lib" >/dev/null || true
echo "$stamp" >"$venv/.inputs"
