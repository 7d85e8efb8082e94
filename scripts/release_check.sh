#!/usr/bin/env bash
# Build the wheel, the sdist and oomdoctor.pyz, and check what a user gets from them.
#
# Usage: scripts/release_check.sh [FOLDER]      (default: dist; what is in it is replaced)
#
# The wheel is built from the sdist. It is installed in a fresh environment with typer and rich only,
# as on a login node, and has to explain an error there.
#
# PYTHON   an interpreter with build, twine and hatchling (default: python3)
# TAG      the tag to release, such as v0.2.0: version and CHANGELOG.md must agree with it
# OOMDOCTOR_PROJECT_URL and OOMDOCTOR_PROJECT_REF  where links of the package lead (hatch_build.py)
set -euo pipefail

case "${1:-}" in
  -h | --help)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
    exit 0
    ;;
esac

cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
dist=$(mkdir -p "${1:-dist}" && cd "${1:-dist}" && pwd)
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' oomdoctor/__init__.py)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "error: $1" >&2
  [ -z "${2:-}" ] || echo "hint:  $2" >&2
  exit 1
}

if [ -n "${TAG:-}" ]; then
  [ "$TAG" = "v$version" ] || fail "the tag is $TAG, and oomdoctor/__init__.py says $version"
  grep -q "^## \[$version\]" CHANGELOG.md ||
    fail "CHANGELOG.md has no section for $version" "rename [Unreleased] to [$version]"
fi

echo "== build"
rm -f "$dist"/oomdoctor-*.whl "$dist"/oomdoctor-*.tar.gz "$dist"/oomdoctor.pyz
"$python" -m build --no-isolation --outdir "$dist" . >"$work/build.log" 2>&1 ||
  { tail -n 20 "$work/build.log" >&2 && fail "the build failed"; }
wheel=$dist/oomdoctor-$version-py3-none-any.whl
sdist=$dist/oomdoctor-$version.tar.gz
[ -f "$wheel" ] && [ -f "$sdist" ] || fail "no wheel or no sdist of $version in $dist"
"$python" scripts/build_pyz.py "$dist/oomdoctor.pyz"

echo "== metadata"
"$python" -m twine check --strict "$wheel" "$sdist"
if [ -n "${OOMDOCTOR_PROJECT_URL:-}" ]; then
  "$python" -m zipfile -e "$wheel" "$work/wheel"
  grep -q "^Project-URL: Source, $OOMDOCTOR_PROJECT_URL" "$work/wheel"/*.dist-info/METADATA ||
    fail "the wheel does not say where the project is"
fi

echo "== light install"
"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps "$wheel"
# The packages of oomdoctor.pyz: typer, rich and what these need.
"$python" scripts/build_pyz.py --packages >"$work/packages"
tail -n 1 "$work/packages" >"$("$work/venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')/light.pth"
trace=$PWD/tests/data/explain/trace.txt
[ -f "$work/venv/share/man/man1/oomdoctor.1" ] || fail "the wheel has no man page"
[ -x "$work/venv/bin/oomdoctor-slurm-probe" ] || fail "the wheel has no oomdoctor-slurm-probe"

smoke() {
  # Neither the repository nor the developer's settings are seen.
  (cd "$work" && env -i HOME="$work" PATH=/usr/bin:/bin COLUMNS=100 LC_ALL=C.UTF-8 "$@")
}

for start in "$work/venv/bin/oomdoctor" "$work/venv/bin/python -I $dist/oomdoctor.pyz"; do
  read -ra words <<<"$start"
  [ "$(smoke "${words[@]}" --version)" = "oomdoctor $version" ] || fail "$start has another version"
  smoke "${words[@]}" explain "$trace" | grep -q "Out of GPU memory" || fail "$start explains nothing"
  smoke "${words[@]}" gpus 4090 | grep -q "RTX 4090" || fail "$start knows no cards"
  smoke "${words[@]}" recipes | grep -q "qlora" || fail "$start has no recipes"
  smoke "${words[@]}" runs | grep -q "nothing to list" || fail "$start cannot list runs"
done

echo "== checked"
(cd "$dist" && sha256sum "oomdoctor-$version-py3-none-any.whl" "oomdoctor-$version.tar.gz" oomdoctor.pyz)
