"""What a shell offers when a person presses Tab, asked for as a shell does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from oomdoctor.cli.options import completion
from oomdoctor.records.job.model import SourceChoice
from oomdoctor.records.report.plan import CardOrder, PlanRequest
from oomdoctor.records.report.report import RankBy
from oomdoctor.records.report.triage import TRIAGE_KEYS
from oomdoctor.render.charts import CHARTS
from oomdoctor.render.formats import format_names
from oomdoctor.system import catalogue
from oomdoctor.system.store import run_folders

ROOT = Path(__file__).parents[2]


def offered(line: str, folder: Path | None = None) -> list[str]:
    """The words that bash is given for a line that ends where the cursor is."""
    done = subprocess.run(
        [sys.executable, "-m", "oomdoctor"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder or ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "_OOMDOCTOR_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(line.split()) - (not line.endswith(" "))),
        },
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "some"),
    [
        ("oomdoctor pl", {"plan"}),
        ("oomdoctor plan gpt2 --recipe q", {"qlora", "quick"}),
        ("oomdoctor plan gpt2 --gpu RTX-409", {"RTX-4090", "RTX-4090-D"}),
        ("oomdoctor probe HuggingFaceTB/SmolLM2-13", {"HuggingFaceTB/SmolLM2-135M"}),
        ("oomdoctor recipes copy qu", {"quick"}),
        ("oomdoctor models Qwen2.5-7", {"Qwen2.5-7B"}),
    ],
)
def test_through_the_shell(line, some):
    assert some <= set(offered(line))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("oomdoctor show --chart ", CHARTS),
        ("oomdoctor show --format ", format_names()),
        ("oomdoctor plan gpt2 --rank-by ", get_args(RankBy)),
        ("oomdoctor plan gpt2 --sort ", get_args(CardOrder)),
        ("oomdoctor plan gpt2 --source ", get_args(SourceChoice)),
        ("oomdoctor plan gpt2 --solve ", ("seq-len", "micro-batch", "lora-rank")),
        ("oomdoctor triage --by ", TRIAGE_KEYS),
    ],
)
def test_all_words_of_a_choice_are_offered(line, words):
    assert set(offered(line)) == set(words)


def test_runs_are_offered_and_only_probes_are_resumed(golden):
    probe, plan = run_folders.create("a"), run_folders.create("b")
    probe.write_request(golden("gpu").request)
    plan.write_request(golden("plan").request)
    assert golden("plan").request.plan is not None
    assert set(offered("oomdoctor show ")) == {"latest", probe.name, plan.name}
    assert set(offered("oomdoctor probe --resume ")) == {"latest", probe.name}


def test_bash_itself_completes(tmp_path):
    program = tmp_path / "oomdoctor"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m oomdoctor "$@"\n')
    program.chmod(0o755)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
    }
    install = [program, "--install-completion", "bash"]
    subprocess.run(install, check=True, env=environment, capture_output=True)
    lines = (
        "source ~/.bash_completions/oomdoctor.sh; COMP_WORDS=(oomdoctor sn); COMP_CWORD=1; "
        '_oomdoctor_completion oomdoctor; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, env=environment)
    assert (done.stdout, done.stderr) == ("snapshot\n", "")


@pytest.mark.parametrize(
    ("shell", "action", "said"),
    [("zsh", "", '"snapshot":"Show what held'), ("fish", "get-args", "snapshot\tShow what held")],
)
def test_zsh_and_fish_get_words_and_what_they_mean(shell, action, said):
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "_OOMDOCTOR_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_ARGS": "oomdoctor sn",
        "_TYPER_COMPLETE_FISH_ACTION": action,
    }
    done = subprocess.run(
        [sys.executable, "-m", "oomdoctor"], capture_output=True, text=True, env=environment
    )
    assert said in done.stdout and done.stderr == ""


@pytest.mark.parametrize(
    ("shell", "file", "word"),
    [
        ("bash", ".bash_completions/oomdoctor.sh", "complete -o default"),
        ("zsh", ".zfunc/_oomdoctor", "#compdef oomdoctor"),
        ("fish", ".config/fish/completions/oomdoctor.fish", "complete --command oomdoctor"),
    ],
)
@pytest.mark.parametrize("separator", [" ", "="])
def test_the_shell_that_is_named(cli, tmp_path, monkeypatch, shell, file, word, separator):
    """Not the shell that runs."""
    monkeypatch.setenv("HOME", str(tmp_path))
    shown = cli(*f"--show-completion{separator}{shell}".split())
    assert (shown.code, shown.err) == (0, "")
    assert word in shown.out and "_OOMDOCTOR_COMPLETE" in shown.out
    done = cli(*f"--install-completion{separator}{shell}".split())
    assert done.code == 0
    assert done.err == f"wrote {tmp_path / file} for {shell}; open a new terminal\n"
    assert (tmp_path / file).read_text().strip() == shown.out.strip()


@pytest.mark.parametrize("option", ["--show-completion", "--install-completion"])
@pytest.mark.parametrize("shell", ["tcsh", "plan", ""])
def test_a_shell_without_completion(cli, tmp_path, monkeypatch, option, shell):
    monkeypatch.setenv("HOME", str(tmp_path))
    done = cli(option, shell)
    assert (done.code, done.out) == (2, "")
    assert f"{shell!r} is not one of bash, zsh, fish" in done.err
    assert list(tmp_path.iterdir()) == []


def test_a_home_that_cannot_be_written(cli, tmp_path, monkeypatch):
    (tmp_path / ".zfunc").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    done = cli("--install-completion", "zsh")
    assert done.code == 5
    assert "--show-completion zsh" in done.err


def test_what_is_offered_for_a_card_is_that_card():
    for gpu in catalogue.gpus():
        word = completion.gpu_word(gpu.name)
        assert " " not in word
        assert catalogue.find_gpu(word) == gpu


def test_models_by_case_by_tail_and_in_the_cache(tmp_path, monkeypatch):
    (tmp_path / "hub" / "models--my-org--my-model").mkdir(parents=True)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    assert completion.models("my-o") == ["my-org/my-model"]
    assert "meta-llama/Llama-3.1-8B" in completion.models("META")
    assert "Llama-3.1-8B" in completion.models("llama-3.1")
    assert completion.models("hu")[-1] == "hub/"


def test_files_of_the_user_are_offered_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("mine.toml", "mine.txt", ".hidden.toml"):
        (tmp_path / name).touch()
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "a.toml").touch()
    assert completion.recipes("m")[-2:] == ["mine.toml", "more/"]
    assert completion.recipes("more/") == ["more/a.toml"]
    assert completion.recipes("no-such-folder/x") == []
    assert completion.probes("x") == []


def test_a_plan_is_no_probe(golden):
    plan = run_folders.create("b")
    plan.write_request(golden("plan").request)
    assert isinstance(golden("plan").request.plan, PlanRequest)
    assert completion.probes("") == ["latest"]


def test_no_heavy_library_is_loaded():
    code = (
        "import sys, typer\n"
        "by_typer = set(sys.modules)\n"  # rich, in old versions
        "from oomdoctor.cli.options import completion\n"
        "for offer in (completion.recipes, completion.models, completion.gpus, completion.runs):\n"
        "    offer('a')\n"
        "heavy = {'torch', 'transformers', 'huggingface_hub', 'pynvml', 'rich'} - by_typer\n"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
