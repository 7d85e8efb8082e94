"""Runs first in every Python process of a watched command, through PYTHONPATH.

It waits for `import torch`, and runs the sitecustomize that it hides. Processes that never import
torch load nothing else.
"""

import importlib.machinery
import importlib.util
import os
import sys
from functools import partial

_ENGINE, _PIPELINE = "deepspeed.runtime.engine", "deepspeed.runtime.pipe.engine"
_HUB, _MODELSCOPE = "huggingface_hub._snapshot_download", "modelscope.hub.snapshot_download"
# What runs after which import; what needs an emulated GPU, only there.
_AFTER = (
    ("torch", "process_watch", "after_torch"),
    ("transformers.trainer", "trainer", "add_callback"),
    ("transformers.training_args", "trainer", "change_settings"),
    ("transformers", "serve", "serve", "transformers"),
    ("diffusers", "serve", "serve", "diffusers"),  # before its modules, which import transformers
    (_HUB, "serve", "serve_downloads", _HUB),
    (_MODELSCOPE, "serve", "serve_downloads", _MODELSCOPE),
    # The method takes an optimizer step, or several backward passes of which the last takes one.
    (_ENGINE, "trainer", "mark_steps", _ENGINE, "DeepSpeedEngine", "step"),
    (_PIPELINE, "trainer", "mark_steps", _PIPELINE, "PipelineEngine", "train_batch"),
)
_AFTER_EMULATED = ("unsloth_zoo.tokenizer_utils", "trainer", "trust_embeddings")


def _watch() -> None:
    if os.environ.get("OOMDOCTOR_WATCH"):
        from oomdoctor.monitor.inside.imports import after_import

        if os.environ.get("OOMDOCTOR_ALONE"):
            _alone()
        emulated = (_AFTER_EMULATED,) if os.environ.get("OOMDOCTOR_EMULATED") else ()
        for name, module, function, *words in (*emulated, *_AFTER):
            after_import(name, partial(_run, module, function, *words))


def _run(module: str, function: str, *words: str) -> None:
    imported = importlib.import_module("oomdoctor.monitor.inside." + module)
    getattr(imported, function)(*words)


def _alone() -> None:
    from oomdoctor.emulator import alone
    from oomdoctor.monitor.inside.imports import after_import

    if alone.is_another_rank():
        alone.stand_aside()
    for module, answer in alone.ANSWERS.items():
        after_import(module, answer)


def _run_hidden() -> None:
    """Run the sitecustomize that Python would have found without this one."""
    here = os.path.dirname(os.path.abspath(__file__))
    path = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


try:
    _watch()
except Exception:  # noqa: BLE001 - the user's program must not notice
    pass
_run_hidden()
