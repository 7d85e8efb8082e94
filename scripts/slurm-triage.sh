#!/bin/sh
# Say why jobs died: one line each with cause, phase, remedy and the line to change.
#
# Usage: scripts/slurm-triage.sh LOG... | --since TIME [options]
#
#   scripts/slurm-triage.sh logs/*.out
#   scripts/slurm-triage.sh --since yesterday
#   scripts/slurm-triage.sh --since 7d --by user --csv
#
# --by KEY     count by user, partition or cause, instead of a line for each job
# --csv        the answer as CSV, with everything that is known
# --json       the answer as one JSON document
# --user NAME, --all-users, --output FILE, --verbose, --quiet: as `oomdoctor triage --help` says
#
# Exit codes: 0 memory ran out in at least one job, 3 in none, 6 in none and some jobs do not say
# why they ended, 2 the command line is wrong, 5 Slurm does not answer.
#
# OOMDOCTOR    the program to use (default: oomdoctor). Typer and rich are all that it needs here.
set -eu

case "${1:---help}" in
  -h | --help)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "$0"
    exit 0
    ;;
esac

# The words of the command line, with --csv in the words of oomdoctor.
count=$#
while [ "$count" -gt 0 ]; do
  word=$1
  shift
  count=$((count - 1))
  case "$word" in
    --csv) set -- "$@" --format csv ;;
    *) set -- "$@" "$word" ;;
  esac
done

# shellcheck disable=SC2086 # it may be several words: python -m oomdoctor
exec ${OOMDOCTOR:-oomdoctor} triage "$@"
