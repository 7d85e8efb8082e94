"""The whole way, nothing replaced: a tiny model is really trained on the CPU, in real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib import resources
from pathlib import Path

import jsonschema
import pytest

from oomdoctor.records.codec import loads
from oomdoctor.records.report.report import Report

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
# What one test has simulated need not be simulated again: each simulator imports torch.
UNPREDICTED = ("--no-predict",)
QUICK = ("--device", "cpu", "--seq-len", "32", "--effective-batch", "2", "--rung-timeout", "60s")


class House:
    """A folder with a model and an environment, for several command lines in a row."""

    def __init__(self, folder: Path) -> None:
        self.model = folder / "tiny"
        self.model.mkdir()
        (self.model / "config.json").write_text(json.dumps(TINY))
        self.environment = {
            **os.environ,
            "HOME": str(folder),
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "HF_HOME": str(folder / "huggingface"),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",  # a tiny model is fastest on one core
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "oomdoctor", *arguments],
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=280)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    return House(tmp_path_factory.mktemp("house"))


@pytest.fixture(scope="module")
def probed(house):
    """The default recipe, measured once for all tests that read it."""
    return house.run("probe", str(house.model), *QUICK, "--micro-batch", "1", "--json")


def test_every_rung_is_measured(probed):
    assert probed.returncode == 0, probed.stderr
    document = json.loads(probed.stdout)
    schema = resources.files("oomdoctor").joinpath("data", "report.schema.json")
    jsonschema.validate(document, json.loads(schema.read_text()))
    report = loads(Report, probed.stdout)
    assert (report.status, report.exit_code, report.errors) == ("ok", 0, ())
    assert len(report.results) >= 10
    fitting = [result for result in report.results if result.outcome == "fits"]
    for result in report.results:
        # Some need a GPU or a library that is not there, and then they say so.
        assert result.outcome in ("fits", "unsupported"), (result.label, result.failure)
        assert result.outcome == "fits" or result.reason
    # Older versions of transformers or bitsandbytes have no QLoRA on the CPU.
    assert {result.config.method for result in fitting} >= {"full", "lora"}
    # On a busy machine, some times do not settle.
    ranked = {result.key for result in fitting if result.speed_state == "settled"}
    assert set(report.ranking) == ranked
    for method in ("full", "lora"):
        picked = getattr(report.picks, method)
        of_method = {result.key for result in fitting if result.config.method == method}
        assert picked in of_method & ranked if of_method & ranked else picked is None
    for result in fitting:
        assert result.evidence == "measured"
        assert result.tokens_per_s > 0
        assert result.peak_allocated_bytes > 0
        assert (result.micro_batch_size, result.gradient_accumulation_steps) == (1, 2)


def test_stderr_tells_one_line_a_rung(probed):
    report = loads(Report, probed.stdout)
    lines = [line for line in probed.stderr.splitlines() if line.startswith("[")]
    assert len(lines) == len(report.results)
    for result in report.results:
        told = "fits, micro-batch 1, peak" if result.outcome == "fits" else "not supported:"
        assert [f"] {result.label}: {told} " in line for line in lines].count(True) == 1


def test_the_run_folder_holds_job_reply_and_log_of_each_rung(probed):
    run = Path(loads(Report, probed.stdout).run_dir)
    jobs = sorted(path.parent for path in run.glob("*/job.json"))
    measuring = [job for job in jobs if "-predict-" not in job.name]
    assert len(measuring) == 1 + len(loads(Report, probed.stdout).results)  # one looks at the model
    assert len(jobs) > len(measuring)
    for job in jobs:
        assert (job / "reply.json").is_file()
        assert (job / "log.txt").is_file()


@pytest.mark.parametrize("format_", ["table", "markdown", "csv", "json"])
def test_show_prints_it_again(house, probed, format_):
    shown = house.run("show", "--format", format_)
    assert (shown.returncode, shown.stderr) == (0, "")
    for result in loads(Report, probed.stdout).results:
        assert result.label in shown.stdout
    if format_ == "json":
        assert shown.stdout == probed.stdout


def test_resuming_a_finished_run_measures_nothing_again(house, probed):
    first = loads(Report, probed.stdout)
    begin = time.monotonic()
    again = house.run("probe", "--resume", Path(first.run_dir).name, "--json")
    assert again.returncode == 0, again.stderr
    assert "finished tries reused" in again.stderr
    second = loads(Report, again.stdout)
    assert [r.tokens_per_s for r in second.results] == [r.tokens_per_s for r in first.results]
    assert time.monotonic() - begin < first.elapsed_s + 30


def test_a_budget_below_the_peak_is_a_real_out_of_memory(house):
    ended = house.run(
        "probe", str(house.model), *QUICK, *UNPREDICTED, "--recipe", "none", "--rung",
        "method=full,micro_batch_size=2", "--vram", "1.4MiB", "--headroom", "0", "--json",
    )  # fmt: skip
    assert ended.returncode == 3, ended.stderr
    (result,) = loads(Report, ended.stdout).results
    assert result.outcome == "oom"
    assert result.oom.requested_bytes > 0
    assert result.oom.message.startswith("CPU out of memory. Tried to allocate")


def test_sigterm_prints_what_is_known_and_resume_goes_on(house):
    process = house.start(
        "probe", str(house.model), *QUICK, *UNPREDICTED, "--micro-batch", "1", "--recipe", "none",
        "--rung", "method=lora", "--rung", "method=full", "--json",
    )  # fmt: skip
    told = ""
    while not told.startswith("["):  # one rung is finished, the other under way
        told = process.stderr.readline()
        assert told, "the survey ended too early"
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    report = loads(Report, out)
    assert process.returncode == report.exit_code == 143, err
    assert report.status == "interrupted"
    assert sum(result.outcome == "fits" for result in report.results) == 1
    resumed = house.run("probe", "--resume", "latest", "--json")
    assert resumed.returncode == 0, resumed.stderr
    after = loads(Report, resumed.stdout)
    assert [result.outcome for result in after.results] == ["fits", "fits"]
    assert len(list(Path(after.run_dir).glob("*/attempt.json"))) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("no/such-model",), 4, "no/such-model"),
        ((".", "--source", "local"), 4, "config.json"),
        (("SmolLM2-135M", "--device", "cuda:99"), None, "GPU"),
        (("SmolLM2-135M", "--device", "warp-drive"), 2, "warp-drive"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_cannot_start_says_why(house, arguments, code, words):
    ended = house.run("probe", *arguments, "--json")
    errors = json.loads(ended.stdout)["errors"]
    assert words in errors[0]["message"]
    assert errors[0]["hint"]
    assert ended.returncode == (code if code is not None else ended.returncode) != 0
