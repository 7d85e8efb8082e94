#!/usr/bin/env bash
# Create or update a virtual environment with the training programs of --from: axolotl,
# LLaMA-Factory, torchtune and DeepSpeed, whose own parsers the tests ask.
#
# Usage: scripts/stacks-venv.sh FOLDER TESTS
#
# It has the packages of scripts/requirements-stacks.txt, and finds all others in TESTS, the virtual
# environment of the tests: 70 MB, 10 seconds. Does nothing if it was already built from the same
# inputs.
set -euo pipefail

case "${1:---help}" in
  -h | --help)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
    exit 0
    ;;
esac

cd "$(dirname "$0")/.."
venv=$1
tests=$2/bin/python
list=scripts/requirements-stacks.txt

stamp=$({ "$tests" -VV && cd "$2" && pwd && cd - >/dev/null && cat "$list" "$0"; } | sha256sum | cut -d' ' -f1)
if [ -x "$venv/bin/python" ] && [ "$(cat "$venv/.inputs" 2>/dev/null)" = "$stamp" ]; then
  exit 0
fi

rm -rf "$venv"
"$tests" -m venv --without-pip "$venv"
packages() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
packages "$tests" >"$(packages "$venv/bin/python")/tests.pth"
# DeepSpeed looks at torch when it is built, and compiles nothing.
DS_BUILD_OPS=0 "$tests" -m pip --python "$venv/bin/python" install --quiet \
  --disable-pip-version-check --no-compile --no-deps --ignore-installed --no-build-isolation -r "$list"
echo "$stamp" >"$venv/.inputs"
