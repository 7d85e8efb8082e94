"""Whose line it is: run, snapshot, explain and the watched process agree on every path."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from oomdoctor.analysis.frames import phase_of
from oomdoctor.analysis.own_code import is_own
from oomdoctor.commands.run.places import user_line
from oomdoctor.explain.reading.lines.traceback import frames_in
from oomdoctor.monitor.inside import process_facts, unknown_reads
from oomdoctor.snapshot.phases import Meanings
from oomdoctor.snapshot.reading.events import NO_STACK, Events, Stacks

LIBRARY = (
    "/usr/lib/python3.11/threading.py",
    "/usr/lib64/python3.9/threading.py",
    "/venv/lib/python3.11/site-packages/torch/nn/functional.py",
    "/usr/lib/python3/dist-packages/numpy/core/fromnumeric.py",
    "/apps/software/PyTorch/2.7/lib/python3.11/site-packages/torch/_tensor.py",
    "/cvmfs/soft/x86_64/python-3.11/lib64/python3.11/site-packages/anything/at_all.py",
    "/opt/conda/pkgs/pytorch-2.7-py3.11/lib/python3.11/site-packages/torch/optim/adam.py",
    "C:\\Python311\\Lib\\site-packages\\peft\\peft_model.py",
    "C:\\Users\\me\\AppData\\Local\\Programs\\Python\\Python39\\lib\\runpy.py",
    "c:\\users\\me\\anaconda3\\lib\\threading.py",
    "C:\\Users\\me\\miniconda3\\envs\\train\\lib\\contextlib.py",
    "/opt/homebrew/Frameworks/Python.framework/Versions/3.11/lib/python3.11/runpy.py",
    "/home/me/deps/torch/nn/modules/linear.py",
    "/home/me/deps/transformers/trainer.py",
    "/scratch/libs/transformers/models/llama/modeling_llama.py",
    "/scratch/libs/peft/tuners/lora/layer.py",
    "/scratch/libs/bitsandbytes/optim/optimizer.py",
    "/home/me/src/transformers/src/transformers/models/llama/modeling_llama.py",
    "/home/me/src/trl/trl/trainer/sft_trainer.py",
    "/home/me/src/accelerate/src/accelerate/utils/operations.py",
    "/home/me/older/transformers/utils/versions.py",
    "/home/me/pytorch/torch/nn/modules/module.py",
    "/home/me/job/libs.zip/yaml/loader.py",
    "/home/me/.cache/huggingface/modules/transformers_modules/model/modeling_x.py",
    "/tmp/torchinductor_me/ab/cab.py",
    "/home/me/.cache/oomdoctor/emulator/inductor/ab/cab.py",
    "/usr/local/bin/torchrun",
    "<frozen runpy>",
    "<string>",
    "/pytorch/aten/src/ATen/native/Copy.cpp",
    "../sysdeps/unix/sysv/linux/x86_64/clone3.S",
)
OWN = (
    "/home/me/train.py",
    "train.py",
    "/home/me/transformers/train.py",
    "/home/me/transformers/examples/pytorch/run_clm.py",
    "/home/me/torch/train.py",
    "C:\\Users\\me\\project\\lib\\train.py",
    "C:\\Users\\me\\AppData\\Local\\Temp\\ipykernel_4711\\3856298371.py",
    "/home/me/project/models/llama.py",
    "/home/me/project/datasets/loader.py",
    "/home/me/peft/train_lora.py",
    "/home/me/trl/finetune.py",
    "/home/me/library/trainer.py",
    "C:\\Users\\me\\train.py",
    "/apps/me/train.py",
    "<stdin>",
    "<ipython-input-3-abc>",
)


def _run(file: str) -> bool:
    frames = [{"filename": file, "line": 3, "name": "f"}]
    return user_line({"phase": "x", "frames": frames, "backward_frames": []}, []) is not None


def _explain(file: str) -> bool:
    text = f'Traceback (most recent call last):\n  File "{file}", line 3, in f\n    x = f(y)\n'
    frames = frames_in(text.splitlines())
    assert len(frames) == 1
    return phase_of(frames)[1] is not None


def _snapshot(file: str) -> bool:
    stacks = Stacks()
    stack = stacks.add(NO_STACK, [{"filename": file, "line": 3, "name": "f"}])
    return Meanings(stacks, Events()).of(stack).where is not None


def _watched(file: str) -> bool:
    return process_facts.is_own_here(file, None)


@pytest.mark.parametrize("rule", [_run, _explain, _snapshot, _watched])
@pytest.mark.parametrize(
    ("file", "own"), [*((f, False) for f in LIBRARY), *((f, True) for f in OWN)]
)
def test_all_agree(rule: Callable[[str], bool], file: str, own: bool) -> None:
    assert rule(file) is own


def test_the_script_is_the_users_wherever_it_lies() -> None:
    script = "/venv/lib/python3.11/site-packages/trl/scripts/sft.py"
    assert not is_own(script)
    assert is_own(script, script=script)


def test_what_pip_wrote_to_start_a_program_is_not_the_users() -> None:
    script = "/venv/bin/axolotl"
    assert not is_own(script, ["/venv/bin"], script)
    assert is_own("/venv/bin/train.py", ["/venv/bin"], "/venv/bin/train.py")
    assert is_own("/home/me/bin/train", ["/venv/bin"], "/home/me/bin/train")


def test_a_read_below_the_program_of_a_package_has_the_line_of_the_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library, program = "/venv/lib/python3.11/site-packages/axolotl/train.py", "/venv/bin/axolotl"
    monkeypatch.setattr(process_facts, "library_folders", lambda: ["/venv/bin"])
    monkeypatch.setattr(unknown_reads, "script_file", lambda: program)
    process_facts.is_own_here.cache_clear()
    names = {"read": unknown_reads._places}
    exec(compile("def made():\n    return read()", "<string>", "exec"), names)
    exec(compile("def train():\n    return made()", library, "exec"), names)
    exec(compile("found = train()", program, "exec"), names)
    process_facts.is_own_here.cache_clear()
    assert names["found"] == ((library, 2), ("<string>", 2))


def test_a_process_knows_what_was_installed_into_other_folders(tmp_path: Path) -> None:
    """As `pip install --target` does; a checkout that is installed in place is the user's."""
    target, checkout = tmp_path / "deps", tmp_path / "mine"
    for package in (target / "uncommon", target / "mine", checkout / "own"):
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
    facts = target / "uncommon-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Name: uncommon\nVersion: 1.0\n")
    (facts / "RECORD").write_text("uncommon/__init__.py,,\nsingle.py,,\n../bin/x,,\n")
    (checkout / "own.egg-info").mkdir()
    (checkout / "own.egg-info" / "PKG-INFO").write_text("Name: own\nVersion: 1.0\n")
    (checkout / "own.egg-info" / "top_level.txt").write_text("own\n")
    archive = tmp_path / "deps.archive"
    zipfile.ZipFile(archive, "w").close()
    folders = _folders([target, checkout, archive])
    assert not is_own(f"{target}/uncommon/deep/code.py", folders)
    assert not is_own(f"{target}/single.py", folders)
    assert not is_own(f"{archive}/yaml/loader.py", folders)
    assert is_own(f"{target}/mine/train.py", folders)
    assert is_own(f"{target}/uncommon_too/train.py", folders)
    assert is_own(f"{checkout}/own/train.py", folders)


def _folders(path: list[Path]) -> list[str]:
    code = "from oomdoctor.monitor.inside.process_facts import library_folders as f; print(f())"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*path, *sys.path]))}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    return list(ast.literal_eval(done.stdout))
