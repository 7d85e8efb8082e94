#!/usr/bin/env bash
# A first look: make a virtual environment, install oomdoctor, probe a small model on this machine.
#
# Usage: scripts/demo.sh [oomdoctor probe arguments]
#
# Takes the GPU where there is one, else the CPU (about two minutes on two cores). Nothing is
# downloaded but Python packages: the model comes from the built-in facts, its weights are random.
#
# VENV             folder of the environment (default: .venv)
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
echo "installing oomdoctor and its libraries in $venv (minutes the first time)" >&2
scripts/venv.sh "$venv" .

if [ $# -eq 0 ]; then
  set -- HuggingFaceTB/SmolLM2-135M --source catalogue --recipe quick --seq-len 64 --effective-batch 2
fi
# Threads that wait must not spin: beside other work on the machine that costs most of the time.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-PASSIVE}
echo "\$ oomdoctor probe $*" >&2
"$venv/bin/oomdoctor" probe "$@"
