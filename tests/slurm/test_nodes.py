"""`probe --nodes 2` in a job of two nodes: a rank on each, which meet and answer as one."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import ROOT, Cluster

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256,
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "max_position_embeddings": 128,
}  # fmt: skip
# Its share of weights, gradients and optimizer states fits in 1 GB; with torch and the rest it
# does not.
LARGE = {"vocab_size": 100_000, "hidden_size": 1024}


@pytest.fixture
def model(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "model").mkdir()
    return tmp_path / "model"


def command(model: Path, config: dict[str, Any]) -> list[str]:
    """A probe with a rank on each of two nodes."""
    (model / "config.json").write_text(json.dumps(config))
    return [
        sys.executable, "-m", "oomdoctor", "probe", str(model), "--gpus", "2", "--nodes", "2",
        "--device", "cpu", "--recipe", "none", "--rung", "sharding=fsdp", "--seq-len", "16",
        "--no-predict", "--json", "--quiet",
    ]  # fmt: skip


def test_a_rank_on_each_node(model: Path, cluster: Cluster) -> None:
    answer = model / "answer.json"
    line = f"{shlex.join(command(model, CONFIG))} >{shlex.quote(str(answer))}"
    job = cluster.submit(line, "--nodes=2", "--mem=1900", "--output=nodes-%j.log")
    cluster.until(job, seconds=400)
    log = (cluster.work / f"nodes-{job}.log").read_text()
    report = json.loads(answer.read_text() or "{}")
    assert report, log
    (found,) = report["results"]
    assert found["outcome"] == "fits", found["reason"]
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    # Each size was measured to its end, so both ranks took as many steps.
    assert [one["outcome"] for one in found["tries"]] == ["fits"] * len(found["tries"])
    asked = ("sacct", "-j", f"{job}.0", "--noheader", "--parsable2", "-o", "NNodes,NTasks")
    assert cluster.ask(*asked) == "2|2"


def test_ranks_that_exceed_the_memory_of_the_job(model: Path) -> None:
    ended = subprocess.run(
        ["salloc", "--quiet", "--nodes=2", "--mem=1000", *command(model, {**CONFIG, **LARGE}),
         "--effective-batch", "2", "--micro-batch", "1"],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ended.stdout, ended.stderr
    (found,) = json.loads(ended.stdout)["results"]
    assert found["outcome"] == "host_oom", found["reason"]
    assert found["reason"] == "Slurm killed the ranks at the memory limit of the job"
