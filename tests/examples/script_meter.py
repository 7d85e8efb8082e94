"""Counts the tensor memory of training scripts and of rungs on the CPU, each in a fork.

    python script_meter.py CASES ANSWERS

CASES is a JSON list. A case with `job` is a rung, measured as `probe` does. One with `script` and
`words` is a command line, counted by the trace that `probe` counts with. ANSWERS gets the peaks.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import sys
import tempfile
import traceback
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from oomdoctor.records.codec import loads
from oomdoctor.records.facts.categories import WEIGHTS
from oomdoctor.records.job.result import ProbeJob

MODULES = (
    "bitsandbytes",
    "datasets",
    "oomdoctor.worker.measuring.measure",
    "oomdoctor.worker.training.build",
    "peft",
    "transformers.models.llama.modeling_llama",
    "transformers.trainer",
)
TRL = ("trl.trainer.sft_trainer",)


def main(cases: Path, answers: Path) -> None:
    """Measure every case, one after the other."""
    warm_up()
    found = [in_fork(case) for case in json.loads(cases.read_text())]
    answers.write_text(json.dumps(found))


def warm_up() -> None:
    """Import once what the cases need: transformers and TRL load much of it on first use."""
    for name in (*MODULES, *(TRL if find_spec("trl") is not None else ())):
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    gc.freeze()  # else each fork copies every page that its first collection marks


def in_fork(case: dict[str, Any]) -> dict[str, Any]:
    """The answer of a case: its `peak` in bytes, or the `error`."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        child = os.fork()
        if child == 0:
            os.chdir(folder)
            try:
                found = measured(case["job"]) if "job" in case else counted(case)
            except BaseException:
                found = {"error": traceback.format_exc()}
            answer.write_text(json.dumps(found))
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)
        return dict(json.loads(answer.read_text())) if answer.exists() else {"error": "it died"}


def measured(job: str) -> dict[str, Any]:
    """The peak of a rung."""
    from oomdoctor.worker.measuring.measure import measure
    from oomdoctor.worker.protocol import PhaseFile

    found = measure(loads(ProbeJob, job), PhaseFile(Path("phase")))
    return {"peak": found.peak_allocated_bytes, "phase": found.peak_phase}


def counted(case: dict[str, Any]) -> dict[str, Any]:
    """The peak of a script. Weights count from when they are loaded: files are mapped before."""
    import transformers

    from oomdoctor.worker.tracing.trace import AllocationTrace

    trace = AllocationTrace("cpu")
    load = transformers.PreTrainedModel.from_pretrained.__func__

    def from_pretrained(kind: Any, *words: Any, **settings: Any) -> Any:
        model = load(kind, *words, **settings)
        trace.adopt([*model.parameters(), *model.buffers()], WEIGHTS)
        return model

    transformers.PreTrainedModel.from_pretrained = classmethod(from_pretrained)
    sys.argv = [case["script"], *case["words"]]
    with trace.recording():
        runpy.run_path(case["script"], run_name="__main__")
    return {"peak": trace.peak, "breakdown": dict(trace.breakdown())}


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
