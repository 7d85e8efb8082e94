#!/usr/bin/env bash
# Install Chromium, for the tests of pages in a real browser, unless there is one.
#
# Usage: scripts/chromium.sh
#
# It needs root and a Debian or Ubuntu. Without a browser these tests are skipped.
set -euo pipefail

case "${1:-}" in
  -h | --help)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
    exit 0
    ;;
esac

for name in "${OOMDOCTOR_CHROMIUM:-}" chromium chromium-browser google-chrome chrome; do
  if [ -n "$name" ] && command -v "$name" >/dev/null; then
    exit 0
  fi
done
export DEBIAN_FRONTEND=noninteractive
{ apt-get update && apt-get install --yes --no-install-recommends chromium fonts-dejavu-core; } >/dev/null
