"""`oomdoctor plan` from the command line: what reaches the plan, and what comes out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from oomdoctor.commands.events import SurveyEvent
from oomdoctor.errors import ExitCode, OomDoctorError
from oomdoctor.records.configuration.config import Rung
from oomdoctor.records.job.machine import Gpu
from oomdoctor.records.report.plan import CardPrice, PlanRequest, Sweep
from oomdoctor.records.report.report import SurveyRequest
from oomdoctor.system.store import run_folders, run_list


def asked(cli, planned, *arguments: str) -> SurveyRequest:
    ended = cli("plan", "m", "--quiet", *arguments)
    assert ended.code == planned.answer.exit_code, ended.err
    assert planned.request is not None
    return planned.request


def test_the_defaults(cli, planned):
    request = asked(cli, planned, "--gpu", "4090")
    assert request.plan == PlanRequest(("4090",))
    assert (request.device, request.headroom, request.vram_bytes) == ("cuda", 0.02, None)
    assert (request.sequence_length, request.effective_batch_size) == (2048, 16)
    assert len(request.recipe.rungs) >= 10


def test_several_cards_and_all_cards(cli, planned):
    two = asked(cli, planned, "--gpu", "T4", "--gpu", "24GiB").plan
    assert two == PlanRequest(("T4", "24GiB"), sort="speed")
    assert asked(cli, planned, "--all-gpus").plan == PlanRequest((), all_gpus=True, sort="speed")
    swept = asked(cli, planned, "--all-gpus", "--sweep", "micro-batch=1,2").plan
    assert swept is not None and swept.sort is None


def test_cards_are_filtered_sorted_and_priced(cli, planned, tmp_path):
    prices = tmp_path / "prices.csv"
    prices.write_text("gpu,usd per hour\nL4,0.80\nnothing like it,1\n")
    plan = asked(cli, planned, "--all-gpus", "--min-vram", "24GiB", "--price", str(prices)).plan
    assert plan is not None and plan.prices is not None
    assert (plan.min_memory_bytes, plan.sort) == (24 << 30, "cost")
    assert (Path(plan.prices.source).name, plan.prices.currency) == ("prices.csv", "USD")
    assert plan.prices.prices == (CardPrice("NVIDIA L4", 0.8, "L4"),)
    assert plan.prices.unknown == ("nothing like it",)
    named = asked(cli, planned, "--all-gpus", "--price", str(prices), "--sort", "name").plan
    assert named is not None and named.sort == "name"


@pytest.mark.parametrize(
    ("text", "sweep"),
    [
        ("seq-len=512..4096", Sweep("sequence_length", (512, 1024, 2048, 4096))),
        ("seq-len=512..3000", Sweep("sequence_length", (512, 1024, 2048, 3000))),
        ("seq-len=4096,512", Sweep("sequence_length", (512, 4096))),
        ("--micro-batch=1..16", Sweep("micro_batch_size", (1, 2, 4, 8, 16))),
    ],
)
def test_a_sweep(cli, planned, text, sweep):
    plan = asked(cli, planned, "--gpu", "T4", "--sweep", text).plan
    assert plan is not None
    assert plan.sweep == sweep


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("seq-len", "sequence_length"),
        ("--micro-batch", "micro_batch_size"),
        ("lora-rank", "lora_rank"),
    ],
)
def test_solve(cli, planned, text, key):
    plan = asked(cli, planned, "--gpu", "T4", "--gpu", "L4", "--solve", text).plan
    assert plan is not None
    assert (plan.gpus, plan.solve) == (("T4", "L4"), key)


def test_a_lora_rank_is_solved_for_rungs_that_have_one(cli, planned):
    request = asked(cli, planned, "--gpu", "T4", "--solve", "lora-rank")
    assert {rung.config.method for rung in request.recipe.rungs} == {"lora", "qlora"}


def test_why_leaves_one_rung(cli, planned):
    request = asked(cli, planned, "--gpu", "L4", "--why", "lora-r16+ckpt")
    assert [rung.label for rung in request.recipe.rungs] == ["lora-r16+ckpt"]
    assert request.plan == PlanRequest(("L4",), why="lora-r16+ckpt")


@pytest.mark.parametrize("label", ["lora-r16+ckpt", "lora-r16-fp16+ckpt"])
def test_why_takes_the_label_of_the_recipe_and_that_of_the_card(cli, planned, label):
    request = asked(cli, planned, "--gpu", "T4", "--why", label)
    (rung,) = request.recipe.rungs
    assert (rung.label, rung.config.weights_dtype) == ("lora-r16-fp16+ckpt", "float16")
    assert request.plan == PlanRequest(("T4",), why=rung.label)


@pytest.mark.parametrize(
    "name", ["NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090 (emulated)", "NVIDIA Unheard Of"]
)
def test_without_a_card_the_gpu_of_this_machine_is_meant(cli, planned, monkeypatch, name):
    here = Gpu(0, "GPU-1", name, 25_249_513_472, None, "8.9", ())
    monkeypatch.setattr("oomdoctor.cli.plan_request.list_gpus", lambda: (here,))
    known = "NVIDIA GeForce RTX 4090" if "4090" in name else "25249513472B"
    assert asked(cli, planned).plan == PlanRequest((known,))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--gpu: is missing, and this machine has no GPU"),
        (["--gpu", "RTX 4091"], "did you mean NVIDIA GeForce RTX 4090"),
        (["--gpu", "4xL40S"], "write 'L40S', and --gpus 4 for all"),
        (["--gpu", "24576"], "24576 what? Write 24576MiB"),
        (["--gpu", "T4", "--effective-batch", "1000000000"], "usual are 8 to 512"),
        (["--gpu", "T4", "--seq-len", "100000000"], "above the maximum of 16,777,216"),
        (["--gpu", "T4", "--micro-batch", "99999999"], "usual are 1 to 64"),
        (["--gpu", "T4", "--rung", "method=lora,lora_rank=99999"], "usual are 8 to 256"),
        (["--gpu", "T4", "--all-gpus"], "leave out --gpu"),
        (["--gpu", "T4", "--sweep", "rank=1"], "cannot sweep"),
        (["--gpu", "T4", "--sweep", "seq-len=9..1"], "not a range of whole numbers"),
        (["--gpu", "T4", "--sweep", "seq-len=a,b"], "not a range of whole numbers"),
        (["--gpu", "T4", "--sweep", "seq-len=0..64"], "not a range of whole numbers"),
        (
            ["--gpu", "T4", "--sweep", "seq-len=" + ",".join(map(str, range(1, 30)))],
            "maximum is 16",
        ),
        (["--gpu", "T4", "--sweep", "seq-len=1..9", "--seq-len", "5"], "leave it out"),
        (
            ["--gpu", "T4", "--sweep", "micro-batch=1,3"],
            "3 does not divide the effective batch size 16",
        ),
        (["--gpu", "T4", "--solve", "rank"], "expected one of seq-len, micro-batch, lora-rank"),
        (
            ["--gpu", "T4", "--solve", "seq-len", "--sweep", "micro-batch=1,2"],
            "--solve: cannot be combined with --sweep",
        ),
        (["--gpu", "T4", "--solve", "seq-len", "--why", "full"], "combined with --why"),
        (
            ["--gpu", "T4", "--solve", "lora-rank", "--recipe", "full"],
            "--solve: no configuration of the recipe full has a LoRA rank",
        ),
        (["--all-gpus", "--solve", "seq-len"], "--solve: cannot be combined with --all-gpus"),
        (["--gpu", "T4", "--solve", "seq-len", "--lengths", "f"], "combined with --lengths"),
        (["--gpu", "T4", "--solve", "seq-len", "--seq-len", "8"], "what --solve looks for"),
        (["--gpu", "T4", "--solve", "micro-batch", "--micro-batch", "8"], "leave it out"),
        (["--gpu", "T4", "--why", "nothing-like-it"], "has no configuration 'nothing-like-it'"),
        (["--gpu", "T4", "--gpu", "L4", "--why", "full-bf16"], "needs exactly one card"),
        (["--all-gpus", "--why", "full-bf16"], "needs exactly one card"),
        (["--all-gpus", "--snapshot", "full-bf16"], "needs exactly one card"),
        (["--gpu", "T4", "--snapshot", "nothing-like-it"], "--snapshot: the recipe"),
        (["--gpu", "T4", "--snapshot", "full", "--why", "full"], "combined with --why"),
        (["--gpu", "T4", "--trace", "full", "--why", "full"], "combined with --why"),
        (["--gpu", "T4", "--sort", "speed"], "--sort: compares cards: add --all-gpus"),
        (["--gpu", "T4", "--min-vram", "8GiB"], "--min-vram: compares cards: add --all-gpus"),
        (["--gpu", "T4", "--sort", "speed"], "--sort: compares cards: add --all-gpus"),
        (["--all-gpus", "--price", "none.csv"], "--price: none.csv: No such file"),
        (["--all-gpus", "--sort", "cost"], "--sort: cost needs --price FILE"),
        (["--all-gpus", "--sort", "size"], "'size' is not one of speed, memory, name, cost"),
        (["--all-gpus", "--min-vram", "1TiB"], "is more than any card has: NVIDIA B300 SXM6 AC"),
        (["--all-gpus", "--sweep", "micro-batch=1,2", "--sort", "name"], "ranks no cards"),
        (["--all-gpus", "--verify"], "--verify: cannot be combined with --all-gpus"),
        (
            ["--gpu", "T4", "--verify", "--with", "torch==2.6.0", "--solve", "seq-len"],
            "--verify: cannot be combined with --solve and --with",
        ),
        (["--gpu", "T4", "--gpu", "L4", "--verify"], "--verify: checks one card"),
        (
            ["--gpu", "AMD Instinct MI300X", "--verify"],
            "--verify: AMD Instinct MI300X is not an NVIDIA",
        ),
    ],
    ids=" ".join,
)
def test_a_fault_says_what_and_why(cli, planned, arguments, words):
    ended = cli("plan", "m", "--quiet", *arguments)
    assert (ended.code, planned.request) == (ExitCode.USAGE, None)
    assert words in ended.err


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("24", "note: --gpu 24 is read as 24GiB"),
        ("24.0", "note: --gpu 24.0 is read as 24.0GiB"),
        ("24GB", "note: --gpu 24GB is 22.4 GiB"),
        ("24GiB", ""),
        ("24g", ""),
        ("4090", ""),
    ],
)
def test_how_a_size_was_read_is_said(cli, planned, typed, said):
    ended = cli("plan", "m", "--gpu", typed)
    assert planned.request.plan.gpus == (typed,)
    notes = [line for line in ended.err.splitlines() if line.startswith("note:")]
    assert "\n".join(notes).startswith(said)
    assert bool(notes) == bool(said)
    assert "note:" not in cli("plan", "m", "--gpu", typed, "--quiet").err


def test_a_number_may_be_typed_as_reports_print_it(cli, planned):
    assert asked(cli, planned, "--gpu", "T4", "--seq-len", "2,048").sequence_length == 2048


def test_all_faults_are_told_at_once_also_in_json(cli, planned):
    arguments = ("--gpu", "x9999", "--sweep", "a=1", "--seq-len", "0", "--headroom", "2", "--json")
    ended = cli("plan", *arguments)
    assert ended.code == ExitCode.USAGE
    document = json.loads(ended.out)
    assert (document["command"], document["status"]) == ("plan", "error")
    message = document["errors"][0]["message"]
    for word in ("MODEL", "--gpu", "--sweep", "--seq-len", "--headroom"):
        assert f"{word}: " in message


def test_the_answer_is_the_report(cli, planned, golden):
    ended = cli("plan", "m", "--gpu", "T4", "--json")
    assert ended.code == 0
    document = json.loads(ended.out)
    assert document["results"][0]["evidence"] == "predicted"
    assert document["cards"][0]["name"] == "NVIDIA GeForce RTX 4090"
    assert ended.err.startswith("oomdoctor")


def test_nothing_fits(cli, planned, golden):
    planned.answer = replace(golden("plan"), exit_code=3, status="no")
    assert cli("plan", "m", "--gpu", "T4").code == 3


def test_show_prints_it_again(cli, planned):
    first = cli("plan", "m", "--gpu", "T4", "--quiet")
    assert cli("show").out == first.out


def test_a_plan_that_could_not_start_leaves_no_folder(cli, planned):
    planned.answer = OomDoctorError("no_model", "there is none", None, ExitCode.MODEL_UNAVAILABLE)
    assert cli("plan", "m", "--gpu", "T4").code == 4
    assert list(run_folders.runs_dir().iterdir()) == []


def test_a_plan_is_not_resumed_by_probe(cli, planned):
    cli("plan", "m", "--gpu", "T4", "--quiet")
    assert "there are no probes" in cli("probe", "--resume", "latest").err
    ended = cli("probe", "--resume", run_list.open_run("latest").name)
    assert ended.code == ExitCode.USAGE
    assert "this run is a plan; only probes can be resumed" in ended.err


def test_progress_tells_each_simulation_once(cli, planned, golden):
    rungs = [row.config for row in golden("plan").results[:2]]
    first, second = (Rung(f"rung-{i}", config) for i, config in enumerate(rungs))
    planned.events = (
        SurveyEvent("inspecting", message="m (hub)"),
        SurveyEvent("simulating", first, total=2),
        SurveyEvent("simulating", second, total=2),
        SurveyEvent("predicted", second, index=1, total=2, message="fits on 3 of 5 cards"),
        SurveyEvent("predicted", first, index=2, total=2),
    )
    told = cli("plan", "m", "--gpu", "T4").err.splitlines()
    assert told[1:] == [
        "inspecting m (hub)",
        "simulating 2 configurations",
        "[1/2] rung-1: fits on 3 of 5 cards",
        "[2/2] rung-0: no result",
    ]
