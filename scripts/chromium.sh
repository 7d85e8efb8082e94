#!/usr/bin/env bash
# Install Chromium, for the tests of pages in a real browser, unless there is one, and fetch axe-core,
# which looks for what keeps people from using a page.
#
# Usage: scripts/chromium.sh
#
# Chromium needs root and a Debian or Ubuntu, axe-core needs npm. What a test needs and does not find
# skips it.
set -euo pipefail

case "${1:-}" in
  -h | --help)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
    exit 0
    ;;
esac

axe=4.14.1
folder=$(cd "$(dirname "$0")/.." && pwd)/build/axe-core
if [ "$(cat "$folder/version" 2>/dev/null)" != "$axe" ] && command -v npm >/dev/null; then
  mkdir -p "$folder"
  { cd "$folder" &&
    npm pack --silent "axe-core@$axe" >/dev/null &&
    tar -xzf "axe-core-$axe.tgz" --strip-components=1 package/axe.min.js &&
    rm "axe-core-$axe.tgz" && echo "$axe" >version; } ||
    echo "warning: no axe-core for the tests of pages" >&2
fi
for name in "${OOMDOCTOR_CHROMIUM:-}" chromium chromium-browser google-chrome chrome; do
  if [ -n "$name" ] && command -v "$name" >/dev/null; then
    exit 0
  fi
done
export DEBIAN_FRONTEND=noninteractive
{ apt-get update && apt-get install --yes --no-install-recommends chromium fonts-dejavu-core; } >/dev/null
