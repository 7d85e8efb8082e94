#!/usr/bin/env bash
# Create or update a virtual environment with a CUDA build of torch, for the emulated GPU.
#
# Usage: scripts/cuda-venv.sh FOLDER
#
# It has the packages of scripts/requirements-cuda.txt and no library of NVIDIA: 2.5 GB, a minute.
# Does nothing if the environment was already built from the same inputs.
#
# PYTHON   the interpreter, 3.11 or newer (default: python3)
set -euo pipefail

case "${1:---help}" in
  -h | --help)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
    exit 0
    ;;
esac

cd "$(dirname "$0")/.."
venv=$1
python=${PYTHON:-python3}
list=scripts/requirements-cuda.txt
deepspeed=deepspeed==0.19.8

stamp=$({ "$python" -V && cat "$list" && echo "$deepspeed"; } | sha256sum | cut -d' ' -f1)
if [ -x "$venv/bin/python" ] && [ "$(cat "$venv/.inputs" 2>/dev/null)" = "$stamp" ]; then
  exit 0
fi

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile --no-deps -r "$list"
# It looks at torch when it is built, and compiles nothing.
DS_BUILD_OPS=0 "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile \
  --no-deps --no-build-isolation "$deepspeed"
# As scripts/venv.sh does.
"$venv/bin/python" -m compileall -q -j 0 -x 'transformers/models/|/tests/|/testing/' \
  "$venv/lib" >/dev/null || true
echo "$stamp" >"$venv/.inputs"
