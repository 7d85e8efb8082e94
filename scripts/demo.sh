#!/usr/bin/env bash
# Try oomdoctor: install it in a virtual environment and probe a small model on this machine.
#
# Usage: scripts/demo.sh [oomdoctor probe arguments]
#
# Uses the GPU if there is one, otherwise the CPU (about two minutes on two cores). Downloads only
# Python packages: the model is built from the catalogue with random weights.
#
# VENV                     folder of the environment (default: .venv)
# PYTHON, OOMDOCTOR_TORCH  see scripts/venv.sh
set -euo pipefail

case "${1:-}" in
  -h | --help)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
    exit 0
    ;;
esac

cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
echo "Installing oomdoctor in $venv (this takes a few minutes the first time)" >&2
scripts/venv.sh "$venv" .

if [ $# -eq 0 ]; then
  set -- HuggingFaceTB/SmolLM2-135M --source catalogue --recipe quick --seq-len 64 --effective-batch 2
fi
# Idle threads must not spin: on a busy machine that slows everything down.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-PASSIVE}
echo "\$ oomdoctor probe $*" >&2
"$venv/bin/oomdoctor" probe "$@"
