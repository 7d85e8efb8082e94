#!/usr/bin/env bash
# Install Chromium and Firefox, for the tests of pages in a real browser, unless they are there, and
# fetch axe-core, which looks for what keeps people from using a page.
#
# Usage: scripts/chromium.sh
#
# The browsers need root and a Debian (Ubuntu has no Firefox as a package), axe-core needs npm. What a
# test needs and does not find skips it.
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
# Whether one of these programs is there.
has() {
  for name in "$@"; do
    if [ -n "$name" ] && command -v "$name" >/dev/null; then
      return 0
    fi
  done
  return 1
}
wanted=()
has "${OOMDOCTOR_CHROMIUM:-}" chromium chromium-browser google-chrome chrome || wanted+=(chromium)
has "${OOMDOCTOR_FIREFOX:-}" firefox-esr firefox || wanted+=(firefox-esr)
[ "${#wanted[@]}" -gt 0 ] || exit 0
export DEBIAN_FRONTEND=noninteractive
apt-get update >/dev/null
for name in "${wanted[@]}"; do
  apt-get install --yes --no-install-recommends "$name" fonts-dejavu-core >/dev/null ||
    echo "warning: no package $name for the tests of pages" >&2
done
