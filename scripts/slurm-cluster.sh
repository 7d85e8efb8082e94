#!/usr/bin/env bash
# Start a small Slurm on this machine, for tests: a controller, accounting and two nodes.
#
# Usage: scripts/slurm-cluster.sh install | start [FOLDER] | stop [FOLDER] | status [FOLDER]
#
# install   Debian's packages, unless they are there; needs root and a Debian or Ubuntu
# start     start it, unless it runs; prints the variables that Slurm's commands need:
#             eval "$(scripts/slurm-cluster.sh start)"; sinfo
# stop      stop it and remove its folder
# status    exit code 0 if it runs
#
# FOLDER holds all that it needs; nothing outside of it changes (default: oomdoctor-slurm in TMPDIR).
# The nodes n1 and n2 are two slurmd on this host, with made-up sizes: 4 CPUs, 2000 MB and two GPUs
# each, of type a100 (n1) and h100 (n2). Jobs run as the user who starts it, which must be root.
# A job that uses more memory than it requested is killed by its cgroup where cgroups (version 1) can
# be made here, and otherwise by Slurm, which samples the memory of jobs each second.
# OOMDOCTOR_SLURM_CGROUPS=0 does without cgroups.
set -euo pipefail

usage() {
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
}

packages="slurmctld slurmd slurm-client slurmdbd slurm-wlm-basic-plugins munge mariadb-server"
programs="slurmctld slurmd slurmdbd sbatch srun munged mariadbd mariadb-install-db"
# Daemons live in /usr/sbin, which is not always in the path.
PATH=$PATH:/usr/sbin:/sbin

absent() {
  for program in $programs; do
    command -v "$program" >/dev/null || { echo "$program" && return; }
  done
}

install() {
  [ -n "$(absent)" ] || return 0
  export DEBIAN_FRONTEND=noninteractive
  # The packages would start their services, with Debian's settings.
  local policy=/usr/sbin/policy-rc.d made=0
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy" && made=1
  fi
  local failed=0
  # shellcheck disable=SC2086 # a list of names
  { apt-get update && apt-get install --yes --no-install-recommends $packages; } >/dev/null || failed=1
  [ "$made" = 0 ] || rm -f "$policy"
  return "$failed"
}

variables() {
  printf 'export SLURM_CONF=%q\n' "$folder/slurm.conf"
}

# A free TCP port, one for each argument.
free_ports() {
  python3 - "$1" <<'PYTHON'
import socket, sys

held = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[1]))]
print(*(one.getsockname()[1] for one in held))
PYTHON
}

# Wait for a condition: at most 30 s.
until_true() {
  local end=$((SECONDS + 30))
  while [ "$SECONDS" -lt "$end" ]; do
    ! "$@" >/dev/null 2>&1 || return 0
    sleep 0.1
  done
  echo "slurm-cluster: no answer to: $*" >&2
  tail -n 5 "$folder"/log/*.log >&2 || true
  return 1
}

# A cgroup of our own, so that two clusters do not meet. Slurm finds it under a link.
cgroup() {
  printf '/sys/fs/cgroup/memory/oomdoctor-%s' "$(printf %s "$folder" | cksum | tr -d ' ')"
}

configure() {
  local limits="TaskPlugin=task/none
JobAcctGatherParams=OverMemoryKill"
  if [ "${OOMDOCTOR_SLURM_CGROUPS:-1}" = 1 ] && mkdir -p "$(cgroup)" 2>/dev/null; then
    limits=TaskPlugin=task/cgroup
    mkdir "$folder/cgroup"
    ln -s "$(cgroup)" "$folder/cgroup/memory"
    cat >"$folder/cgroup.conf" <<CONF
CgroupPlugin=cgroup/v1
CgroupMountpoint=$folder/cgroup
ConstrainRAMSpace=yes
ConstrainSwapSpace=yes
AllowedSwapSpace=0
CONF
  fi
  local ports controller database accounting first second
  ports=$(free_ports 5)
  read -r controller database accounting first second <<<"$ports"
  touch "$folder"/gpu/{a,h}100-{0,1} # slurmd wants to see a file for each GPU
  chmod 711 "$folder/munge"
  chmod 700 "$folder/db"
  [ -s "$folder/munge/key" ] || (umask 077 && head -c 1024 /dev/urandom >"$folder/munge/key")
  echo "$database" >"$folder/db-port"
  cat >"$folder/slurmdbd.conf" <<CONF
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket
DbdHost=localhost
DbdPort=$accounting
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=$database
StorageUser=slurm
StoragePass=none
StorageLoc=slurm
LogFile=$folder/log/slurmdbd.log
PidFile=$folder/run/slurmdbd.pid
CONF
  chmod 600 "$folder/slurmdbd.conf"
  cat >"$folder/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=$controller
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
$limits
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort=$accounting
AccountingStoragePass=$folder/munge/socket
AccountingStorageTRES=gres/gpu
JobCompType=jobcomp/none
GresTypes=gpu
SlurmdParameters=config_overrides
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool-%n
SlurmctldPidFile=$folder/run/slurmctld.pid
SlurmdPidFile=$folder/run/slurmd-%n.pid
SlurmctldLogFile=$folder/log/slurmctld.log
SlurmdLogFile=$folder/log/slurmd-%n.log
SlurmctldDebug=info
SlurmdDebug=info
ReturnToService=2
SlurmdTimeout=10
InactiveLimit=0
MinJobAge=300
KillWait=2
OverTimeLimit=0
MaxArraySize=1001
LaunchParameters=enable_nss_slurm
DefMemPerCPU=100
NodeName=n1 NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=$first CPUs=4 RealMemory=2000 Gres=gpu:a100:2
NodeName=n2 NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=$second CPUs=4 RealMemory=2000 Gres=gpu:h100:2
PartitionName=gpu Nodes=n1,n2 Default=YES MaxTime=60 State=UP PriorityTier=1
PartitionName=urgent Nodes=n1,n2 MaxTime=60 State=UP PriorityTier=10 PreemptMode=OFF
CONF
  cat >"$folder/gres.conf" <<CONF
NodeName=n1 Name=gpu Type=a100 File=$folder/gpu/a100-[0-1]
NodeName=n2 Name=gpu Type=h100 File=$folder/gpu/h100-[0-1]
CONF
}

start() {
  local missing
  missing=$(absent)
  [ -z "$missing" ] || {
    echo "slurm-cluster: $missing is not installed: scripts/slurm-cluster.sh install" >&2
    return 1
  }
  [ "$(id -u)" = 0 ] || { echo "slurm-cluster: needs root" >&2 && return 1; }
  export SLURM_CONF=$folder/slurm.conf
  if status; then
    variables
    return 0
  fi
  stop
  mkdir -p "$folder"/{log,run,munge,state,spool-n1,spool-n2,db,gpu}
  configure
  # In the background, because `set -e` does not hold on the left of `||`.
  daemons >"$folder/log/start.log" 2>&1 &
  wait "$!" || {
    tail -n 20 "$folder"/log/*.log >&2
    return 1
  }
  variables
}

daemons() {
  local port
  port=$(cat "$folder/db-port")
  munged --force --num-threads=2 --key-file="$folder/munge/key" --socket="$folder/munge/socket" \
    --pid-file="$folder/run/munged.pid" --log-file="$folder/log/munged.log" \
    --seed-file="$folder/munge/seed"
  mariadb-install-db --no-defaults --user=root --datadir="$folder/db/data" \
    --auth-root-authentication-method=normal --skip-test-db --skip-name-resolve \
    --innodb-log-file-size=4M
  setsid mariadbd --no-defaults --user=root --datadir="$folder/db/data" --port="$port" \
    --bind-address=127.0.0.1 --socket="$folder/db/socket" --pid-file="$folder/run/mariadbd.pid" \
    --skip-name-resolve --innodb-log-file-size=4M --innodb-buffer-pool-size=32M \
    --innodb-flush-log-at-trx-commit=0 --innodb-lock-wait-timeout=900 --performance-schema=OFF \
    --log-error="$folder/log/mariadbd.log" </dev/null &
  until_true mariadb-admin --no-defaults --socket="$folder/db/socket" --user=root ping
  mariadb --no-defaults --socket="$folder/db/socket" --user=root \
    --execute="CREATE USER slurm@'127.0.0.1' IDENTIFIED BY 'none'; CREATE DATABASE slurm;
      GRANT ALL ON slurm.* TO slurm@'127.0.0.1'"
  slurmdbd
  until_true timeout 5 sacctmgr --noheader list cluster
  sacctmgr --immediate add cluster test || true
  slurmctld -c
  slurmd -N n1
  slurmd -N n2
  until_true ready
}

ready() {
  [ "$(timeout 5 sinfo --noheader --format=%T --nodes=n1,n2 | sort -u)" = idle ]
}

status() {
  [ -f "$folder/slurm.conf" ] && SLURM_CONF=$folder/slurm.conf timeout 5 scontrol ping 2>/dev/null |
    grep -q UP
}

stop() {
  local file pid _
  if status; then
    export SLURM_CONF=$folder/slurm.conf
    timeout 5 scancel --signal=KILL --full --user=root --state=RUNNING || true
    timeout 5 scancel --user=root || true
    for _ in $(seq 30); do
      [ -n "$(timeout 5 squeue --noheader)" ] || break
      sleep 0.1
    done
  fi
  for file in "$folder"/run/{slurmctld,slurmd-n1,slurmd-n2,slurmdbd,mariadbd,munged}.pid; do
    [ -s "$file" ] || continue
    pid=$(cat "$file")
    # The id may be another process by now. What these write is about to go, so they need no time.
    ! grep -qsE 'slurm|mariadb|munge' "/proc/$pid/comm" || kill -9 "$pid" 2>/dev/null || true
  done
  [ ! -d "$(cgroup)" ] || find "$(cgroup)" -depth -type d -exec rmdir {} + 2>/dev/null || true
  rm -rf "$folder"
}

folder=${2:-${TMPDIR:-/tmp}/oomdoctor-slurm}
case "${1:---help}" in
  install | start | stop | status) "$1" ;;
  -h | --help) usage ;;
  *)
    usage >&2
    exit 2
    ;;
esac
