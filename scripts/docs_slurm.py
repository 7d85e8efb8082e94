"""Run the commands of the pages about Slurm on the Slurm of the tests, and return their reports.

It needs what scripts/slurm-cluster.sh needs. One job dies on the emulated GPU, so the `python` on
PATH needs a CUDA build of torch.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
# What a job leaves behind. The first is the one that the pages explain.
_HOG = "python -c 'import time; kept = bytearray(400 << 20); print(len(kept)); time.sleep(60)'"
_TRAIN = "oomdoctor run --emulate 'RTX 4090' --weights synthetic -- python train.py"
_DEATHS = (
    ("train-a", "100", "60", _HOG),
    ("train-b", "1900", "60", _TRAIN),
    ("train-c", "100", "1", "echo training; sleep 300"),
    ("train-d", "100", "60", "exit 7"),
)
_TINY = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256,
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "max_position_embeddings": 128,
}  # fmt: skip
_LIMIT_S = 600  # of the jobs together


def slurm_reports(commands: Mapping[str, str], folder: Path) -> dict[str, str]:
    """What each command prints as JSON, by name. All work in `folder`/jobs."""
    jobs = folder / "jobs"
    jobs.mkdir()
    (jobs / "tiny").mkdir()
    (jobs / "tiny" / "config.json").write_text(json.dumps(_TINY), encoding="utf-8")
    shutil.copy(ROOT / "docs" / "examples" / "train.py", jobs)
    (jobs / "scripts").symlink_to(ROOT / "scripts")
    (folder / "bin").mkdir()
    program = folder / "bin" / "oomdoctor"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m oomdoctor "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    cluster = [ROOT / "scripts" / "slurm-cluster.sh"]
    try:
        subprocess.run([*cluster, "start", folder / "slurm"], check=True, stdout=sys.stderr)
        environment = {
            **os.environ,
            "SLURM_CONF": str(folder / "slurm" / "slurm.conf"),
            "SBATCH_MEM_PER_NODE": "1900",
            "SLURM_PROBE_POLL_S": "1",
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "XDG_STATE_HOME": str(folder / "state"),
        }
        _die(jobs, environment)
        return {name: _answer(line, jobs, environment) for name, line in commands.items()}
    finally:
        subprocess.run([*cluster, "stop", folder / "slurm"], check=False)


def _die(jobs: Path, environment: Mapping[str, str]) -> None:
    """Submit the jobs, cancel one more, and wait until all have ended."""
    for name, memory, minutes, line in (*_DEATHS, ("train-e", "100", "60", "sleep 300")):
        asked = ("sbatch", f"--job-name={name}", f"--mem={memory}", f"--time={minutes}")
        subprocess.run([*asked, f"--wrap={line}"], cwd=jobs, env=environment, check=True)
    subprocess.run(["scancel", "--name=train-e"], env=environment, check=True)
    deadline = time.monotonic() + _LIMIT_S
    while subprocess.check_output(["squeue", "--noheader"], env=environment):
        if time.monotonic() > deadline:
            raise TimeoutError("the jobs did not end")
        time.sleep(1)
    time.sleep(5)  # accounting learns it later


def _answer(line: str, jobs: Path, environment: Mapping[str, str]) -> str:
    before, dashes, after = line.partition(" -- ")
    line = f"{before} --json{dashes}{after}"
    print(line, file=sys.stderr)
    shell = subprocess.run(
        ["bash", "-c", line], cwd=jobs, env=environment, check=False, stdout=subprocess.PIPE
    )
    if not shell.stdout:
        raise RuntimeError(f"no report from: {line}")
    return shell.stdout.decode()
