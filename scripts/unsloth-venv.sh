#!/usr/bin/env bash
# Create or update a virtual environment with Unsloth, above one with a CUDA build of torch.
#
# Usage: scripts/unsloth-venv.sh FOLDER CUDA_FOLDER
#
# Unsloth changes other libraries when it is imported, and it asks for older ones than the newest. So it
# has an environment of its own: the packages of scripts/requirements-unsloth.txt, and beneath them
# those of CUDA_FOLDER, which scripts/cuda-venv.sh makes. 250 MB, half a minute.
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
below=$(cd "$2" && pwd)
list=scripts/requirements-unsloth.txt

stamp=$({ echo "$below" && cat "$below/.inputs" "$list"; } | sha256sum | cut -d' ' -f1)
if [ -x "$venv/bin/python" ] && [ "$(cat "$venv/.inputs" 2>/dev/null)" = "$stamp" ]; then
  exit 0
fi

rm -rf "$venv"
"$below/bin/python" -m venv --without-pip "$venv"
packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$below/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$packages/below.pth"
"$below/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile --no-deps \
  --target "$packages" -r "$list"
# Only what is imported at all; of the models of transformers, a few are.
"$venv/bin/python" -m compileall -q -j 0 -x 'transformers/models/|/diffusers/|/studio/' \
  "$packages" >/dev/null || true
echo "$stamp" >"$venv/.inputs"
