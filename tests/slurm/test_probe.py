"""scripts/slurm-probe.sh: a job a GPU type, and one table of what they found."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from slurm_cluster import ROOT, Cluster, doctor

SCRIPT = ROOT / "scripts" / "slurm-probe.sh"
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256,
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "max_position_embeddings": 128,
}  # fmt: skip
TINY = ("--device", "cpu", "--recipe", "none", "--rung", "method=full", "--seq-len", "16",
        "--effective-batch", "1", "--micro-batch", "1", "--no-predict")  # fmt: skip


@pytest.fixture
def script(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with a tiny model; the script calls this oomdoctor, and jobs get enough memory."""
    monkeypatch.setenv("OOMDOCTOR", f"{sys.executable} -m oomdoctor")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("SBATCH_MEM_PER_NODE", "1800")
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def call(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT, *words], capture_output=True, text=True, cwd=folder, timeout=200)


def test_a_dry_run_writes_the_jobs_and_submits_none(script: Path) -> None:
    ended = call(
        script, "m", "--partition=gpu", "--gpu-types", "a100,h100", "--time", "20", "--account",
        "lab", "--gpus", "2", "--dir", "d", "--dry-run", "--", "--seq-len", "4096",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    text = (script / "d" / "h100.sbatch").read_text()
    for line in ("--partition=gpu", "--gres=gpu:h100:2", "--time=20", "--account=lab", "--requeue"):
        assert f"#SBATCH {line.removeprefix('#SBATCH ')}" in text or f"#SBATCH {line[2:]}" in text
    assert "options=(m --gpus 2 --seq-len 4096)" in text
    assert not (script / "d" / "jobs.tsv").exists()
    submitted = subprocess.run(["bash", "-n", script / "d" / "a100.sbatch"], capture_output=True)
    assert submitted.returncode == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("m", "--partition", "gpu", "--gpu-types", "b200"), 2, "it has: a100 h100"),
        (("m", "--partition", "dark", "--gpu-types", "a100"), 2, "no partition dark"),
        (("m", "--gpu-types", "a100"), 2, "no --partition"),
        (("m", "--partition", "gpu", "--gpu-types", "a100", "--gpus", "0"), 2, "at least 1"),
        (("--gather", "nowhere"), 2, "nowhere has no jobs"),
    ],
)
def test_mistakes(script: Path, words: tuple[str, ...], code: int, said: str) -> None:
    ended = call(script, *words)
    assert (ended.returncode, said in ended.stderr) == (code, True)


def test_results_are_gathered_also_from_a_job_that_was_canceled(
    script: Path, cluster: Cluster
) -> None:
    ended = call(
        script, str(script / "tiny"), "--partition", "gpu", "--gpu-types", "a100,h100", "--time",
        "5", "--dir", "d", "--", *TINY,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    rows = (script / "d" / "jobs.tsv").read_text().split()
    jobs = dict(zip(rows[::2], rows[1::2], strict=True))
    cluster.ask("scancel", jobs["h100"])
    cluster.until(jobs["a100"], seconds=150)
    cluster.until(jobs["h100"])
    page = call(script, "--gather", "d").stdout
    assert page.startswith("1 of 2 GPU types can train it")
    found = csv.DictReader(io.StringIO(call(script, "--gather", "d", "--csv").stdout))
    by_type = {row["gpu_type"]: row for row in found}
    assert (by_type["a100"]["status"], by_type["a100"]["outcome"]) == ("ok", "fits")
    assert "canceled the job" in by_type["h100"]["reason"]
    report = json.loads((script / "d" / "a100.json").read_text())
    # It would have ended before the job: 5 minutes, less the time to write the answer.
    assert 60 < report["request"]["time_limit_s"] < 240
    # What a requeued job does: the same script, and the run is there already.
    again = doctor("probe", "--resume", "latest", "--json",
                   XDG_STATE_HOME=str(script / "d" / "a100.state"))  # fmt: skip
    assert json.loads(again.stdout)["run_dir"] == report["run_dir"]
