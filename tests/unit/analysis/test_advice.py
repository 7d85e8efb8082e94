"""Exit code and status of a survey, and the lines to type next."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from analysis_make import GIB, request, result, rung

from oomdoctor.analysis.advice import deciding, exit_of, measuring_commands, next_commands
from oomdoctor.analysis.command_line import command_line
from oomdoctor.analysis.verdict import NOT_REACHED
from oomdoctor.errors import ExitCode
from oomdoctor.records.codec import loads
from oomdoctor.records.configuration.config import Recipe
from oomdoctor.records.job.dataset import TrainingRequest
from oomdoctor.records.job.model import ModelRef
from oomdoctor.records.report.plan import PlanRequest, Sweep
from oomdoctor.records.report.user_training import YOURS, UserTraining, YourChange, YourRung

DATA = Path(__file__).parents[2] / "data"
FITS, OOM = result("a", "fits"), result("b", "oom", missed_by_bytes=GIB)
SKIPPED = result("c", "skipped", reason="too big", missed_by_bytes=GIB)
NEAR = replace(FITS, label="near", borderline=True)
UNREACHED = result("d", "skipped", failure=NOT_REACHED)
UNSUPPORTED = result("e", "unsupported")


@pytest.mark.parametrize(
    ("results", "code", "status"),
    [
        ((FITS, OOM), ExitCode.OK, "ok"),
        ((FITS, UNREACHED, result("x", "crashed")), ExitCode.OK, "ok"),
        ((OOM,), ExitCode.NO, "no"),
        ((OOM, SKIPPED, UNSUPPORTED), ExitCode.NO, "no"),
        ((OOM, UNREACHED), ExitCode.INCONCLUSIVE, "partial"),
        ((OOM, result("x", "crashed")), ExitCode.INCONCLUSIVE, "partial"),
        ((OOM, result("x", "timed_out")), ExitCode.INCONCLUSIVE, "partial"),
        ((OOM, result("x", "failed")), ExitCode.INCONCLUSIVE, "partial"),
        ((OOM, result("x", "host_oom")), ExitCode.INCONCLUSIVE, "partial"),
        ((), ExitCode.INCONCLUSIVE, "partial"),
        ((FITS, NEAR), ExitCode.OK, "ok"),
        ((NEAR, OOM), ExitCode.INCONCLUSIVE, "partial"),
        ((replace(OOM, borderline=True), SKIPPED), ExitCode.INCONCLUSIVE, "partial"),
    ],
)
def test_how_a_survey_ends(results, code, status):
    assert exit_of(results) == (code, status)


def test_with_from_the_own_rung_decides():
    training = loads(UserTraining, (DATA / "stacks" / "user_training.json").read_text())
    asked = request(user_training=training)
    own = result(YOURS, "oom", missed_by_bytes=GIB)
    assert deciding((own, FITS), request()) == (own, FITS)
    assert exit_of(deciding((own, FITS), asked)) == (ExitCode.NO, "no")
    assert exit_of(deciding((result(YOURS, "fits"), OOM), asked)) == (ExitCode.OK, "ok")
    assert exit_of(deciding((result(YOURS, "crashed"), FITS), asked))[0] is ExitCode.INCONCLUSIVE


def test_after_an_own_rung_that_does_not_fit_its_best_change_is_asked():
    training = loads(UserTraining, (DATA / "stacks" / "user_training.json").read_text())
    files = ("train.yaml",)
    asked = request(plan=PlanRequest(("L4",)), user_training=training, from_files=files)
    own = (result(YOURS, "oom", missed_by_bytes=GIB),)
    rung = "yours,micro_batch_size=1"
    change = YourChange("micro-batch size 1", rung, (), 1, 16, GIB, None, None)
    yours = YourRung("k", YOURS, "fits", (change,), (), None)
    first, why, show = next_commands(own, asked, "run-1", yours=yours)
    words = "oomdoctor plan some/model --from train.yaml --gpu L4 --recipe none"
    assert first.startswith(words) and first.endswith(f"--rung {rung}")
    assert why.startswith(words) and why.endswith("--why yours")
    assert show == "oomdoctor show run-1 --verbose"
    (measure,) = measuring_commands(own, asked, yours=yours)
    assert "oomdoctor probe some/model --from train.yaml" in measure
    assert measure.endswith(f"--rung {rung}")
    nothing = replace(yours, changes=())
    assert "--all-gpus" in next_commands(own, asked, "run-1", yours=nothing)[0]
    assert measuring_commands(own, asked, yours=nothing) == ()


@pytest.mark.parametrize("code", [ExitCode.INTERRUPTED, ExitCode.TERMINATED])
def test_a_signal_decides_whatever_fits(code):
    assert exit_of((FITS,), code) == (code, "interrupted")


def test_after_a_fit_the_run_can_be_shown():
    assert next_commands((FITS, OOM), request(), "run-1") == (
        "oomdoctor show run-1 --verbose",
        "oomdoctor show run-1 --format json",
    )
    page = next_commands((FITS, OOM), request(), "run-1", pages=True)
    assert page == ("oomdoctor show run-1 --verbose", "oomdoctor show run-1 --html report.html")


def test_an_unfinished_survey_can_go_on():
    lines = next_commands((FITS, UNREACHED), request(), "run-1")
    assert lines[0] == "oomdoctor probe --resume run-1"
    stopped = next_commands((FITS,), request(), None, interrupted=True)
    assert stopped[0] == "oomdoctor probe --resume latest"


def test_a_borderline_rung_is_never_proposed():
    """Next looked at it, and measured it."""
    asked = request(plan=PlanRequest(("RTX 4090",)))
    assert any("--why a" in line for line in next_commands((NEAR, FITS), asked, "r"))
    alone = next_commands((NEAR, OOM), asked, "r")
    assert not any("near" in line or "--why" in line for line in alone)
    assert any("--all-gpus" in line for line in alone)
    assert measuring_commands((NEAR, OOM), asked) == ()


def test_when_nothing_fits_less_is_asked():
    asked = request(vram_bytes=8 * GIB, device="cuda:1", model=ModelRef("./my model"))
    assert next_commands((OOM,), asked, "run-1") == (
        "oomdoctor probe './my model' --recipe qlora --device cuda:1 --vram 8GiB "
        "--seq-len 2048 --effective-batch 16",
        "oomdoctor probe './my model' --device cuda:1 --vram 8GiB "
        "--seq-len 1024 --effective-batch 16",
        "oomdoctor models",
    )


def test_what_was_tried_is_not_advised_again():
    qlora = result("q", "oom", method="qlora")
    lines = next_commands((qlora,), request(sequence_length=512), None)
    assert lines == ("oomdoctor models",)
    fixed = next_commands((qlora,), request(micro_batch_size=4), None)
    assert any(line.endswith("--micro-batch 1") for line in fixed)


def test_other_ends_have_their_own_lines():
    crashed = next_commands((result("x", "crashed"),), request(), None)
    assert crashed == ("oomdoctor show --verbose",)
    assert next_commands((UNSUPPORTED,), request(), None) == ("oomdoctor env",)
    slow = next_commands((result("x", "timed_out"),), request(), None)
    assert slow[-1].endswith("--rung-timeout 1200s")


def test_rungs_of_the_command_line_are_typed_again():
    own = rung(
        "own",
        method="lora",
        lora_rank=64,
        lora_targets=("q_proj", "v_proj"),
        weights_dtype="float32",
        double_quant=False,
        micro_batch_size=4,
    )
    asked = request(recipe=Recipe("none", "", (own,), "command line"))
    lines = next_commands((result("x", "oom", method="qlora"),), asked, None)
    words = shlex.split(lines[0])
    assert words[:5] == ["oomdoctor", "probe", "some/model", "--recipe", "none"]
    assert words[words.index("--rung") + 1] == (
        "method=lora,weights_dtype=float32,lora_rank=64,lora_targets=q_proj+v_proj,"
        "double_quant=false,micro_batch_size=4"
    )
    other = next_commands((result("x", "oom"),), asked, None)
    assert "--rung" not in other[0]


def test_two_engines_on_one_gpu_are_one_rung_to_type():
    rungs = tuple(
        rung(name, method="full", offload="optimizer", weights_dtype="bfloat16")
        for name in ("zero2+offload-states", "zero3+offload-states")
    )
    asked = replace(request(), recipe=Recipe("none", "", rungs, "command line"))
    line = command_line(asked)
    assert line.count("--rung") == 1 and "offload=optimizer" in line


def test_a_recipe_of_the_user_is_named_by_its_file():
    asked = request(recipe=Recipe("mine", "", (), "./mine.toml"))
    lines = next_commands((result("x", "oom", method="qlora"),), asked, None)
    assert "--recipe ./mine.toml" in lines[0]


PLANNED = {"device": "cuda", "plan": PlanRequest(("RTX 4090",))}
SIZES = "--seq-len 2048 --effective-batch 16"  # a probe takes others on the CPU


def test_what_only_the_simulation_does_not_support_is_open():
    open_ = result("e", "unsupported", evidence="predicted")
    assert exit_of((OOM, open_)) == (ExitCode.INCONCLUSIVE, "partial")
    assert exit_of((FITS, open_)) == (ExitCode.OK, "ok")


def test_after_a_plan_that_fits_measure_it_or_take_it_apart():
    fast = result("fast", "fits", tokens_per_s=9.0)
    asked = request(**PLANNED)
    assert measuring_commands((FITS, fast, OOM), asked) == (f"oomdoctor probe some/model {SIZES}",)
    assert measuring_commands((OOM,), asked) == measuring_commands((FITS,), request()) == ()
    assert next_commands((FITS, fast, OOM), asked, "run-1") == (
        "oomdoctor plan some/model --gpu 'RTX 4090' --why fast",
        "oomdoctor show run-1 --verbose",
    )


def test_what_changes_the_training_comes_with_the_smaller_micro_batch():
    asked = request(**PLANNED, micro_batch_size=8)
    size, *others = next_commands((OOM,), asked, "run-1")[1:3]
    assert "--recipe" not in size and size.endswith("--micro-batch 1")
    assert others[0].endswith("--micro-batch 1") and "--recipe qlora" in others[0]


def test_after_a_plan_that_does_not_fit_ask_for_other_cards_or_less():
    assert next_commands((OOM,), request(**PLANNED), "run-1") == (
        "oomdoctor plan some/model --all-gpus",
        "oomdoctor plan some/model --gpu 'RTX 4090' --recipe qlora",
        "oomdoctor plan some/model --gpu 'RTX 4090' --seq-len 1024",
        "oomdoctor show run-1 --verbose",
    )


def test_a_plan_that_was_broken_off_is_made_again_with_all_it_asked():
    sweep = PlanRequest(("T4",), sweep=Sweep("sequence_length", (512, 1024)))
    lines = next_commands((), request(device="cuda", plan=sweep), "run-1", interrupted=True)
    assert lines == (
        "oomdoctor plan some/model --gpu T4 --sweep seq-len=512,1024",
        "oomdoctor show run-1 --verbose",
    )
    why = PlanRequest(("T4",), why="full-bf16")
    again = next_commands((), request(device="cuda", plan=why), "run-1", interrupted=True)[0]
    assert again == "oomdoctor plan some/model --gpu T4 --why full-bf16"


def test_the_next_commands_keep_the_own_data():
    asked = request(rung(), plan=PlanRequest(("T4",)), training=TrainingRequest(52_000, 0.5))
    lines = next_commands([FITS], asked, "run")
    assert "--rows 52000 --epochs 0.5" in lines[0]
    by_file = request(rung(), plan=PlanRequest(("T4",)), training=TrainingRequest(None))
    assert "--rows" not in next_commands([FITS], by_file, "run")[0]
