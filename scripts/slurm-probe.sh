#!/usr/bin/env bash
# Probe a model on several GPU types of a Slurm cluster: one job each, one table of all results.
#
# Usage: scripts/slurm-probe.sh MODEL --partition P --gpu-types a100,h100 [options] [-- probe options]
#        scripts/slurm-probe.sh --gather DIR [--csv | --json]
#
#   scripts/slurm-probe.sh Qwen/Qwen2.5-7B --partition gpu --gpu-types a100,h100 --time 30 --wait
#   scripts/slurm-probe.sh Qwen/Qwen2.5-7B --partition gpu --gpu-types a100 -- --seq-len 4096
#
# --partition P   where to submit
# --gpu-types T   GPU types of the partition, with commas between them, as in --gres=gpu:TYPE
# --gpus N        GPUs of each job (default: 1)
# --time T        time limit of each job, as sbatch takes it
# --account A     the account to charge
# --dir DIR       where scripts, logs and results go (default: slurm-probe-TIME)
# --dry-run       write the job scripts, submit nothing
# --wait          wait until all jobs have ended, then print the table
# --gather DIR    print the table of an earlier call, whatever has ended so far
# --csv, --json   the table as CSV or as one JSON document
#
# A requeued job continues its probe. A job that failed or timed out has a row with the reason.
#
# OOMDOCTOR       the program to use, here and in the jobs (default: oomdoctor)
set -euo pipefail

program=${OOMDOCTOR:-oomdoctor}
model='' partition='' types='' gpus=1 limit='' account='' dir='' dry=0 waits=0 gather='' format=table

usage() {
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "$0"
}

fail() {
  printf 'error: %s\n' "$1" >&2
  [ $# -lt 2 ] || printf 'hint:  %s\n' "$2" >&2
  exit "${3:-2}"
}

[ $# -gt 0 ] || {
  usage >&2
  exit 2
}
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help)
      usage
      exit 0
      ;;
    --dry-run) dry=1 ;;
    --wait) waits=1 ;;
    --csv) format=csv ;;
    --json) format=json ;;
    --)
      shift
      break
      ;;
    --partition=* | --gpu-types=* | --gpus=* | --time=* | --account=* | --dir=* | --gather=*)
      word=$1
      shift
      set -- "${word%%=*}" "${word#*=}" "$@"
      continue
      ;;
    --partition | --gpu-types | --gpus | --time | --account | --dir | --gather)
      [ $# -gt 1 ] || fail "$1 needs a value"
      case "$1" in
        --partition) partition=$2 ;;
        --gpu-types) types=$2 ;;
        --gpus) gpus=$2 ;;
        --time) limit=$2 ;;
        --account) account=$2 ;;
        --dir) dir=$2 ;;
        --gather) gather=$2 ;;
      esac
      shift
      ;;
    -*) fail "unknown option $1" "put options of probe after --; see scripts/slurm-probe.sh --help" ;;
    *)
      [ -z "$model" ] || fail "two models: $model and $1"
      model=$1
      ;;
  esac
  shift
done

table() {
  # shellcheck disable=SC2086 # it may be several words: python -m oomdoctor
  $program show "$1" --format "$format"
}

if [ -n "$gather" ]; then
  [ -f "$gather/jobs.tsv" ] || fail "$gather has no jobs" "name the folder that an earlier call printed"
  table "$gather"
  exit
fi

[ -n "$model" ] || fail "no model" "scripts/slurm-probe.sh MODEL --partition P --gpu-types a100,h100"
[ -n "$partition" ] || fail "no --partition" "sinfo -s lists them"
[ -n "$types" ] || fail "no --gpu-types" "sinfo -p $partition -o %G lists them"
[[ $gpus =~ ^[1-9][0-9]*$ ]] || fail "--gpus: '$gpus' is not a whole number of at least 1"
[[ $types =~ ^[A-Za-z0-9_.,-]+$ ]] || fail "--gpu-types: '$types' is not a list of names"
command -v sbatch >/dev/null || fail "sbatch is not installed" "run this on a login node" 5

# The types that the partition has, without their counts.
known=$(sinfo --noheader --partition="$partition" --format=%G 2>&1) || fail "sinfo: $known" "" 5
[ -n "$known" ] || fail "there is no partition $partition" "sinfo -s lists them"
known=$(tr ',' '\n' <<<"$known" | sed -n 's/^gpu:\([^:(]*\):.*/\1/p' | sort -u)
IFS=, read -r -a wanted <<<"$types"
for type in "${wanted[@]}"; do
  grep -qxF -- "$type" <<<"$known" || fail \
    "partition $partition has no GPU type $type" "it has: $(tr '\n' ' ' <<<"${known:-none}")"
done

dir=${dir:-slurm-probe-$(date +%Y%m%d-%H%M%S)}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
[ ! -e "$dir/jobs.tsv" ] || fail "$dir has the jobs of an earlier call" "choose another --dir"
more=()
[ "$gpus" = 1 ] || more=(--gpus "$gpus")
options=$(printf ' %q' "${more[@]}" "$@")
[ $# -gt 0 ] || [ "$gpus" != 1 ] || options=''

for type in "${wanted[@]}"; do
  {
    echo '#!/usr/bin/env bash'
    printf '#SBATCH --%s\n' "job-name=probe-$type" "partition=$partition" "gres=gpu:$type:$gpus" \
      "output=$dir/$type.log" requeue open-mode=append
    [ -z "$limit" ] || echo "#SBATCH --time=$limit"
    [ -z "$account" ] || echo "#SBATCH --account=$account"
    printf 'dir=%q type=%q\n' "$dir" "$type"
    cat <<'JOB'
export XDG_STATE_HOME=$dir/$type.state
# Slurm before 23.02 does not say when the job ends.
if [ -z "${SLURM_JOB_END_TIME:-}" ]; then
  ends=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%e) &&
    SLURM_JOB_END_TIME=$(date --date="$ends" +%s 2>/dev/null) && export SLURM_JOB_END_TIME
fi
JOB
    printf 'program=(%s)\n' "$program"
    printf 'options=(%q%s)\n' "$model" "$options"
    cat <<'JOB'
# After a requeue the run is there already.
if ls "$XDG_STATE_HOME"/oomdoctor/runs/* >/dev/null 2>&1; then
  options=(--resume latest)
fi
exec "${program[@]}" probe "${options[@]}" --output "$dir/$type.json"
JOB
  } >"$dir/$type.sbatch"
  if [ "$dry" = 1 ]; then
    echo "sbatch $dir/$type.sbatch"
    continue
  fi
  job=$(sbatch --parsable "$dir/$type.sbatch") || fail "sbatch refused $dir/$type.sbatch" "" 5
  printf '%s\t%s\n' "$type" "${job%%;*}" >>"$dir/jobs.tsv"
  echo "submitted job ${job%%;*} for $type" >&2
done
[ "$dry" = 0 ] || exit 0

if [ "$waits" = 0 ]; then
  echo "when they have ended: $0 --gather $dir" >&2
  exit 0
fi
jobs=$(cut -f2 "$dir/jobs.tsv" | paste -sd,)
while [ -n "$(squeue --noheader --jobs="$jobs" --states=PENDING,RUNNING,SUSPENDED,COMPLETING,CONFIGURING 2>/dev/null)" ]; do
  sleep "${SLURM_PROBE_POLL_S:-10}"
done
table "$dir"
