#!/usr/bin/env bash
# The steps of action.yml: `oomdoctor check` in a GitHub workflow.
#
# Usage: scripts/check-action.sh key | install | check
#
#   key      print the key under which the environment with the CUDA build is kept
#   install  make the environments in RUNNER_TEMP: one with oomdoctor, one with a CUDA build of torch
#   check    run the checks; put the table into the summary and, on a pull request, into a comment
#
# CHECK_FILE, CHECK_AGAINST, CHECK_PYTHON, CHECK_COMMENT  the inputs of action.yml
# CHECK_PULL_REQUEST  the number of the pull request; empty without one
# RUNNER_TEMP, GITHUB_OUTPUT, GITHUB_STEP_SUMMARY, GITHUB_REPOSITORY, GH_TOKEN  are GitHub's
set -euo pipefail

case "${1:---help}" in
  -h | --help)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
    exit 0
    ;;
esac

root=$(cd "$(dirname "$0")/.." && pwd)
own=$RUNNER_TEMP/oomdoctor
cuda=$RUNNER_TEMP/oomdoctor-cuda
mark="<!-- oomdoctor check -->"

fail() {
  echo "::error::$1" >&2
  exit 2
}

key() {
  local inputs
  inputs=$(cat "$root/scripts/requirements-cuda.txt" "$root/scripts/cuda-venv.sh" | sha256sum)
  echo "key=oomdoctor-cuda-$(uname -m)-${inputs%% *}" >>"$GITHUB_OUTPUT"
}

install() {
  python3 -m venv "$own"
  "$own/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
    -r "$root/scripts/requirements-check.txt"
  # oomdoctor itself is used from here: building it would need packages that nothing pins.
  echo "$root" >"$("$own/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/oomdoctor.pth"
  [ -n "$CHECK_PYTHON" ] || "$root/scripts/cuda-venv.sh" "$cuda"
}

check() {
  [ -f "$CHECK_FILE" ] || fail "file: there is no $CHECK_FILE"
  case "$CHECK_COMMENT" in
    true | false) ;;
    *) fail "comment: is true or false, not $CHECK_COMMENT" ;;
  esac
  case "$CHECK_AGAINST" in
    -*) fail "against: $CHECK_AGAINST is no revision" ;;
  esac
  case "$CHECK_PULL_REQUEST" in
    *[!0-9]*) fail "the number of the pull request is $CHECK_PULL_REQUEST" ;;
  esac
  [ -z "$CHECK_PYTHON" ] || [ -x "$CHECK_PYTHON" ] || fail "python: there is no $CHECK_PYTHON"

  local programs=$cuda/bin table=$RUNNER_TEMP/oomdoctor-check.md report=$RUNNER_TEMP/oomdoctor-check.json
  [ -z "$CHECK_PYTHON" ] || programs=$(cd "$(dirname "$CHECK_PYTHON")" && pwd)
  local words=("$CHECK_FILE" --quiet --format markdown --output "$report")
  [ -z "$CHECK_AGAINST" ] || words+=(--against "$CHECK_AGAINST")
  local code=0
  # The commands of the file start with `python` or `torchrun`: those of the training's environment.
  PATH=$programs:$PATH "$own/bin/python" -m oomdoctor check "${words[@]}" >"$table" || code=$?
  {
    echo "exit-code=$code"
    echo "report=$report"
  } >>"$GITHUB_OUTPUT"
  cat "$table" >>"$GITHUB_STEP_SUMMARY"
  if [ "$CHECK_COMMENT" = true ] && [ -n "$CHECK_PULL_REQUEST" ] && [ -s "$table" ]; then
    comment "$table" || echo "::warning::the comment could not be written" >&2
  fi
  exit "$code"
}

# Write the comment of an earlier run again, or a new one.
comment() {
  local of="repos/$GITHUB_REPOSITORY/issues" body earlier
  body=$(printf '%s\n%s\n' "$mark" "$(cat "$1")")
  earlier=$(gh api --paginate "$of/$CHECK_PULL_REQUEST/comments" \
    --jq ".[] | select(.body | startswith(\"$mark\")) | .id" | head -n 1)
  if [ -n "$earlier" ]; then
    gh api --silent --method PATCH "$of/comments/$earlier" --raw-field "body=$body"
  else
    gh api --silent "$of/$CHECK_PULL_REQUEST/comments" --raw-field "body=$body"
  fi
}

case "$1" in
  key | install | check) "$1" ;;
  *) fail "$1 is no step; see $0 --help" ;;
esac
