"""`--gpus` on probe and plan: what reaches the run, and what is refused."""

from __future__ import annotations

import pytest

from oomdoctor.analysis.command_line import command_line
from oomdoctor.errors import ExitCode
from oomdoctor.records.report.report import SurveyRequest
from oomdoctor.records.report.searched import GpuRange


@pytest.fixture
def plan(cli, planned):
    def asked(*arguments: str) -> SurveyRequest:
        ended = cli("plan", "m", "--quiet", "--gpu", "H100", *arguments)
        assert ended.code == planned.answer.exit_code, ended.err
        return planned.request

    return asked


@pytest.fixture
def probe(cli, survey):
    def asked(*arguments: str) -> SurveyRequest:
        ended = cli("probe", "m", "--quiet", *arguments)
        assert ended.code == survey.answer.exit_code, ended.err
        return survey.request

    return asked


def test_several_gpus_take_the_ladder_for_several(plan):
    request = plan("--gpus", "8")
    assert (request.gpus, request.recipe.name, request.effective_batch_size) == (8, "sharded", 16)
    assert {rung.config.world_size for rung in request.recipe.rungs} == {8}
    assert plan("--gpus", "1").recipe.name == "default"


def test_the_ladder_for_several_gpus_is_announced(cli, planned):
    assert "the recipe is sharded" in cli("plan", "m", "--gpu", "H100", "--gpus", "8").err
    assert "sharded" not in cli("plan", "m", "--gpu", "H100").err


def test_another_recipe_is_copied_to_each_gpu(plan):
    request = plan("--gpus", "8", "--recipe", "lora")
    assert {rung.config.sharding for rung in request.recipe.rungs} == {"ddp"}


@pytest.mark.parametrize(("gpus", "batch"), [(1, 16), (3, 18), (8, 16), (64, 64)])
def test_the_usual_batch_is_a_multiple_of_the_gpus(plan, gpus, batch):
    assert plan("--gpus", str(gpus)).effective_batch_size == batch


def test_the_usual_batch_is_also_a_multiple_of_the_micro_batch(plan):
    request = plan("--gpus", "8", "--micro-batch", "4")
    assert (request.micro_batch_size, request.effective_batch_size) == (4, 32)


def test_a_rung_may_fix_its_own_number(plan):
    fixed = "sharding=fsdp,world_size=4"
    request = plan("--recipe", "none", "--rung", fixed)
    assert (request.gpus, request.most_gpus()) == (1, 4)
    both = plan("--gpus", "8", "--recipe", "none", "--rung", fixed, "--rung", "sharding=fsdp")
    assert sorted(rung.config.world_size for rung in both.recipe.rungs) == [4, 8]


def test_gpus_that_share_sequences_take_a_smaller_batch(plan):
    rung = "sharding=fsdp,context_parallel_size=8"
    request = plan("--gpus", "8", "--effective-batch", "1", "--recipe", "none", "--rung", rung)
    (only,) = request.recipe.rungs
    assert (only.config.rank_batch_size(), only.config.rank_length()) == (1, 256)


def test_the_fewest_gpus(plan):
    request = plan("--gpus", "2..24", "--min", "--effective-batch", "20")
    assert request.plan.fewest == GpuRange(2, 24)
    assert (request.gpus, request.effective_batch_size) == (24, 20)
    assert {rung.config.effective_batch_size for rung in request.recipe.rungs} == {24}


def test_what_links_the_gpus(plan):
    assert plan("--gpus", "8", "--interconnect", "pcie").plan.interconnect == "pcie"
    assert plan("--gpus", "8").plan.interconnect == "auto"


def test_the_host_memory_of_a_machine(plan):
    assert plan("--gpus", "8", "--host-memory", "512GiB").plan.host_memory_bytes == 512 << 30
    assert plan("--gpus", "8").plan.host_memory_bytes is None


def test_emulated_gpus_are_counted_once(probe):
    for words in (["--emulate", "8xT4"], ["--emulate", "T4", "--gpus", "8"]):
        request = probe(*words)
        assert (request.emulate, request.gpus, request.all_ranks) == ("8xTesla T4", 8, False)
    assert probe("--emulate", "8xT4", "--ranks", "all").all_ranks


def test_the_ranks_of_a_slurm_job_are_spread_over_its_nodes(probe, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    request = probe("--gpus", "8", "--nodes", "2", "--device", "cpu")
    assert (request.nodes, request.gpus_here()) == (2, 4)
    assert "--nodes 2" in command_line(request)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan", "--gpus", "0"], "not a whole number"),
        (["plan", "--gpus", "8..2", "--min"], "the smaller number first"),
        (["plan", "--gpus", "1..2..3", "--min"], "neither a number nor a range"),
        (["plan", "--gpus", "1..8"], "add --min"),
        (["plan", "--min"], "needs a range"),
        (["plan", "--gpus", "8", "--min"], "needs a range"),
        (["plan", "--gpus", "1..8", "--min", "--why", "x"], "cannot be combined with --why"),
        (["plan", "--gpus", "8", "--effective-batch", "12"], "use 8 or 16"),
        (["plan", "--gpus", "8", "--effective-batch", "4"], "use 8"),
        (["plan", "--interconnect", "pcie"], "add --gpus"),
        (["plan", "--host-memory", "lots"], "--host-memory"),
        (["plan", "--gpus", "8", "--interconnect", "usb"], "'usb' is not one of auto, nvlink"),
        (["plan", "--gpus", "8", "--effective-batch", "16", "--micro-batch", "4"], "each of 8"),
        (["probe", "--gpus", "1..2"], "is one number for probe"),
        (["probe", "--gpus", "2", "--device", "cuda:0"], "CUDA_VISIBLE_DEVICES"),
        (["probe", "--gpus", "2", "--ranks", "all"], "is for emulated GPUs"),
        (["probe", "--emulate", "4xT4", "--gpus", "8"], "has 4 GPUs, but --gpus says 8"),
        (["probe", "--emulate", "T4", "--gpus", "65"], "at most 64"),
        (["probe", "--gpus", "4", "--nodes", "2"], "needs a Slurm job: salloc --nodes 2"),
        (["probe", "--gpus", "4", "--nodes", "3"], "a multiple of 3"),
        (["probe", "--nodes", "2"], "a multiple of 2"),
        (["probe", "--emulate", "4xT4", "--nodes", "2"], "leave out --emulate"),
    ],
    ids=" ".join,
)
def test_what_is_refused(cli, planned, survey, words, said):
    command, *rest = words
    card = ["--gpu", "H100"] if command == "plan" else []
    ended = cli(command, "m", *card, *rest)
    assert ended.code == ExitCode.USAGE
    assert said in ended.err


@pytest.mark.parametrize("recipe", [["--recipe", "sharded"], ["--recipe", "sharded-lora"]])
def test_a_recipe_for_several_gpus_needs_their_number(cli, planned, recipe):
    ended = cli("plan", "m", "--gpu", "H100", *recipe)
    assert ended.code == ExitCode.USAGE
    assert "--gpus is missing" in ended.err
    hint = ended.err.partition("hint:")[2].split()
    assert cli(*hint[1:]).code == planned.answer.exit_code
    assert planned.request.gpus == 8
