"""What scontrol and sacct print about a job, and a machine without them."""

from __future__ import annotations

import shutil
from pathlib import Path

SCONTROL = """JobId=4718 ArrayJobId=4711 ArrayTaskId=7 JobName=tune 8b
   UserId=me(1000) GroupId=lab(200) MCS_label=N/A
   Priority=4294 Nice=0 Account=lab QOS=normal
   JobState=OUT_OF_MEMORY Reason=OutOfMemory Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:125
   RunTime=00:12:44 TimeLimit=1-00:00:00 TimeMin=N/A
   ReqNodeList=(null) ExcNodeList=gpu09
   NodeList=gpu01
   Command=/home/me/tune.sbatch
   WorkDir=/home/me/my runs
   StdErr=/home/me/my runs/tune-4711_7.err
   StdIn=/dev/null
   StdOut=/home/me/my runs/tune-4711_7.out
   Power=

"""


def row(**cells: str) -> str:
    """A row of sacct; what is not named has its usual value."""
    usual = {
        "JobID": "4711", "User": "me", "State": "FAILED", "ExitCode": "1:0", "MaxRSS": "",
        "ReqMem": "64G", "NNodes": "2", "AllocCPUS": "16", "NodeList": "gpu[01-02]",
        "Elapsed": "00:12:44", "Timelimit": "1-00:00:00", "WorkDir": "/home/me",
    }  # fmt: skip
    return "|".join({**usual, **cells}.values())


def tools_without_slurm(folder: Path) -> str:
    """A PATH with the tools that scripts of tests use, but no command of Slurm."""
    folder.mkdir(exist_ok=True)
    for name in ("sh", "bash", "cat", "sleep", "env"):
        (folder / name).symlink_to(shutil.which(name) or f"/bin/{name}")
    return str(folder)
