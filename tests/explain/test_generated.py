"""Genuine tracebacks of real tiny trainings, with the moment of the failure known, explained."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import explain_scripts
import injected_oom
import pytest

from oomdoctor.errors import ExitCode
from oomdoctor.explain.diagnose import diagnose, exit_of
from oomdoctor.explain.reading.lines.stream import lines
from oomdoctor.explain.reading.scan import scan
from oomdoctor.explain.training.known import Given
from oomdoctor.records.report.diagnosis import Diagnosis
from oomdoctor.units import GIB

_DEFAULTS = {
    "ATTENTION": 'attn_implementation="sdpa"',
    "FUSED": "foreach=True",
    "ADAPTER": "",
    "CHECKPOINTING": "",
    "OPTIMIZER": "SGD(model.parameters(), lr=0.1, momentum=0.9)",
}
_CHECKPOINTING = (
    'gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": False},'
)
# name -> the script and what stands in its gaps
RUNS: dict[str, tuple[str, dict[str, str]]] = {
    "plain": (explain_scripts.PLAIN, {}),
    "plain-eager": (
        explain_scripts.PLAIN,
        {"ATTENTION": 'attn_implementation="eager"', "FUSED": "fused=True"},
    ),
    "plain-loop": (explain_scripts.PLAIN, {"FUSED": "foreach=False"}),
    "trainer": (explain_scripts.TRAINER, {}),
    "trainer-checkpointing": (explain_scripts.TRAINER, {"CHECKPOINTING": _CHECKPOINTING}),
    "trainer-peft": (explain_scripts.TRAINER, {"ADAPTER": explain_scripts.LORA}),
    "accelerate": (explain_scripts.ACCELERATE, {}),
    "accelerate-peft": (explain_scripts.ACCELERATE, {"ADAPTER": explain_scripts.LORA}),
    "qlora": (explain_scripts.QLORA, {}),
    "own": (explain_scripts.OWN_MODEL, {}),
    "own-adam": (explain_scripts.OWN_MODEL, {"OPTIMIZER": "Adam(model.parameters())"}),
}
_EVERY = ("load", "forward", "loss", "backward", "clip", "optimizer")
_MOMENTS = {
    "plain": (*_EVERY, "eval", "generate"),
    "plain-eager": (*_EVERY, "eval", "generate"),
    "plain-loop": ("optimizer", "clip"),
    "trainer": (*_EVERY, "eval"),
    "trainer-checkpointing": ("forward", "backward", "optimizer"),
    "trainer-peft": (*_EVERY, "eval"),
    "accelerate": _EVERY,
    "accelerate-peft": ("forward", "loss", "backward", "clip", "optimizer"),
    "qlora": ("load", "forward", "loss", "backward", "optimizer"),
    "own": ("forward", "loss", "backward", "optimizer"),
    "own-adam": ("forward", "loss", "backward", "optimizer"),
}
# Where within the operators of the moment, as a share.
_SHARES = {"forward": (0.1, 0.9), "backward": (0.1, 0.9), "optimizer": (0.1, 0.9)}
# The reader of safetensors turns an error in the midst of a file into one of its own.
_AFTER_READING = {"load": (0.97,)}


def _is_inner(name: str, share: float) -> bool:
    """The inner loop has the early operators of the scripts that differ most."""
    return name in ("plain", "trainer", "qlora") and share != 0.9


CASES = [
    pytest.param(name, moment, share, marks=[] if _is_inner(name, share) else [pytest.mark.slow])
    for name, moments in _MOMENTS.items()
    for moment in moments
    for share in (_AFTER_READING if name == "qlora" else {}).get(moment)
    or _SHARES.get(moment, (0.5,))
]
_CAUSES = {
    "load": {"weights", "capacity"},
    "forward": {"activations", "logits"},
    "loss": {"logits"},
    "backward": {"activations", "gradients", "logits"},
    "clip": {"gradients"},
    "optimizer": {"optimizer_states"},
    "eval": {"activations", "eval_accumulation", "logits"},
    "generate": {"kv_cache"},
}


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of 100 kB on disk."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("models") / "tiny"
    config = LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=256, max_position_embeddings=64,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def scripts(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every run as a file of its own."""
    folder = tmp_path_factory.mktemp("scripts")
    written = {}
    for name, (text, gaps) in {**RUNS, "ranks": (explain_scripts.RANKS, {})}.items():
        words = {"MODEL": str(model_folder), "OUT": str(folder / "out"), **_DEFAULTS, **gaps}
        for word, value in words.items():
            text = text.replace(word, value)
        written[name] = folder / f"train_{name.replace('-', '_')}.py"
        written[name].write_text(text)
    return written


@pytest.fixture(scope="module")
def counted(scripts: dict[str, Path]) -> dict[str, Counter[str]]:
    """How often each moment comes in a run that fails nowhere; filled as needed."""
    return {}


def _run(script: Path, moment: str | None = None, count: int = 1):  # type: ignore[no-untyped-def]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return injected_oom.run(script, moment, count)


def _explain(text: str) -> tuple[Diagnosis, ...]:
    incidents, facts = scan(lines([text.encode()]))
    return diagnose("log", incidents, facts, Given())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "moment", "share"), CASES)
def test_traceback_tells_memory_phase_and_line(
    name: str, moment: str, share: float, scripts: dict[str, Path], counted: dict[str, Counter[str]]
) -> None:
    if name == "qlora":
        import transformers

        pytest.importorskip("bitsandbytes")
        if int(transformers.__version__.split(".")[0]) < 5:
            pytest.skip("this transformers cannot use bitsandbytes on the CPU")
    if name not in counted:
        nothing, counted[name] = _run(scripts[name])
        assert nothing is None
    times = counted[name][moment]
    assert times > 0, f"{name} has no {moment}"
    failure, _ = _run(scripts[name], moment, max(1, round(share * times)))
    assert failure is not None

    found = _explain(failure.text)[0]
    assert found.is_oom
    assert found.resource == "gpu"
    assert found.dialect == "cuda_caching_allocator"
    assert found.numbers.requested_bytes == round(1.96 * GIB)
    assert found.phase == moment, failure.text
    assert found.where is not None, failure.text
    assert (found.where.file, found.where.line) == (failure.source, failure.line)
    causes = {cause.cause for cause in found.causes}
    if name.startswith("own"):  # images: there is no vocabulary
        assert "logits" not in causes and causes & (_CAUSES[moment] | {"activations"})
    else:
        assert causes & _CAUSES[moment], found.causes
    assert exit_of([found]) == ExitCode.OK
    if name == "trainer-checkpointing" and moment == "forward":
        assert "activation checkpointing" not in [r.change for r in found.remedies]


def test_at_least_sixty_cases() -> None:
    assert len(CASES) >= 60


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_first_of_two_ranks_is_the_cause(scripts: dict[str, Path], tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys, injected_oom\n"
        f"script = pathlib.Path({str(scripts['ranks'])!r})\n"
        "rank = os.environ['RANK']\n"
        "failure, _ = injected_oom.run(script, 'backward' if rank == '1' else None, 20)\n"
        "for line in failure.text.splitlines() if failure else ():\n"
        "    print(f'[rank{rank}]: {line}', file=sys.stderr)\n"
        "sys.stderr.flush()\n"
        "os._exit(1 if failure else 0)\n"
    )
    environment = dict(
        os.environ,
        STORE=f"file://{tmp_path / 'store'}",
        WORLD_SIZE="2",
        OMP_NUM_THREADS="1",
        CUDA_VISIBLE_DEVICES="",
        PYTHONPATH=os.pathsep.join(sys.path),
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    logs = [child.communicate(timeout=180)[1] for child in children]
    assert "OutOfMemoryError" in logs[1], logs[1]

    found = _explain(logs[0] + logs[1])
    assert (found[0].is_oom, found[0].rank, found[0].phase) == (True, 1, "backward"), found
    assert found[0].where is not None
    assert (found[0].where.code or "").startswith("loss.backward()")
