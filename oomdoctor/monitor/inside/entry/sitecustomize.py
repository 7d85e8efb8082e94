"""Runs first in every Python process of a watched command, through PYTHONPATH.

It waits for `import torch`, and runs the sitecustomize that it hides. Processes that never import
torch load nothing else.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _watch() -> None:
    folder = os.environ.get("OOMDOCTOR_WATCH")
    if folder:
        from oomdoctor.monitor.inside.imports import after_import

        if os.environ.get("OOMDOCTOR_ALONE"):
            _alone()
        if os.environ.get("OOMDOCTOR_EMULATED"):
            after_import("unsloth_zoo.tokenizer_utils", _unsloth)
        after_import("torch", _torch)
        after_import("transformers.trainer", _trainer)
        after_import("transformers", _transformers)
        after_import("deepspeed.runtime.engine", _engine)
        after_import("deepspeed.runtime.pipe.engine", _pipeline_engine)


def _alone() -> None:
    from oomdoctor.emulator.alone import ranks as alone
    from oomdoctor.monitor.inside.imports import after_import

    if alone.is_another_rank():
        alone.stand_aside()
    after_import("torch.distributed.rendezvous", alone.answer_rendezvous)
    after_import("torch.distributed.distributed_c10d", alone.answer_collectives)
    after_import("torch.distributed.checkpoint.default_planner", alone.answer_checkpoints)
    after_import("torch.distributed.fsdp._optim_utils", alone.answer_optimizer_states)


def _transformers() -> None:
    from oomdoctor.monitor.inside.weights.serve import serve

    serve()


def _torch() -> None:
    from oomdoctor.monitor.inside.process_watch import after_torch

    after_torch()


def _trainer() -> None:
    from oomdoctor.monitor.inside.trainer import add_callback

    add_callback()


def _engine() -> None:
    from oomdoctor.monitor.inside.trainer import mark_steps

    mark_steps("deepspeed.runtime.engine")


def _pipeline_engine() -> None:
    from oomdoctor.monitor.inside.trainer import mark_steps

    mark_steps("deepspeed.runtime.pipe.engine")


def _unsloth() -> None:
    from oomdoctor.monitor.inside.trainer import trust_embeddings

    trust_embeddings()


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
