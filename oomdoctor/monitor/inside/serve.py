"""Lets `from_pretrained` find a checkpoint without data instead of the one that is not there.

The first argument of `from_pretrained` becomes a folder; transformers does the rest. Names that
cannot be found anywhere, and folders and models that are not for this, are left as they are.
"""

from __future__ import annotations

import fcntl
import functools
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from oomdoctor.monitor.inside.imports import after_import
from oomdoctor.monitor.shared_folder import asked
from oomdoctor.system.environment import WATCH_FOLDER, all_variables, variable

# Modules of transformers and their classes whose `from_pretrained` takes a model's name.
CLASSES = {
    "transformers.modeling_utils": ("PreTrainedModel",),
    "transformers.models.auto.auto_factory": ("_BaseAutoModelClass",),
    "transformers.models.auto.configuration_auto": ("AutoConfig",),
    "transformers.models.auto.tokenization_auto": ("AutoTokenizer",),
    "transformers.configuration_utils": ("PretrainedConfig", "PreTrainedConfig"),
    "transformers.tokenization_utils_base": ("PreTrainedTokenizerBase",),
    "transformers.generation.configuration_utils": ("GenerationConfig",),
}
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "tf_model.h5", "flax_model.msgpack")
_MARK = "oomdoctor-synthetic"
_STAND_IN = "oomdoctor-tokenizer"  # beside a tokenizer that is a stand-in


def serve() -> None:
    """Serve models in every class that loads them, if the parent asks for it."""
    folder = Path(variable(WATCH_FOLDER) or "")
    if asked(folder).get("weights") == "synthetic":
        for module in CLASSES:
            after_import(module, functools.partial(serve_in, module, folder / "weights"))


def serve_in(module: str, folder: Path) -> None:
    """Serve models from `folder` in the classes of an imported module of transformers."""
    for name in CLASSES[module]:
        served = getattr(sys.modules[module], name, None)
        if served is not None and "from_pretrained" in vars(served):
            _wrap(served, folder)


def _wrap(owner: Any, folder: Path) -> None:
    original: Any = vars(owner)["from_pretrained"]
    function: Callable[..., Any] = getattr(original, "__func__", original)
    if getattr(function, "__wrapped_by_oomdoctor__", False):
        return

    named = next(islice(inspect.signature(function).parameters, 1, None))

    @functools.wraps(function)
    def from_pretrained(cls: Any, *given: Any, **options: Any) -> Any:
        name, rest = (given[0], given[1:]) if given else (options.pop(named, None), ())
        served = None
        if isinstance(name, (str, Path)):
            with suppress(Exception):  # what cannot be served is loaded as ever
                served = served_folder(str(name), folder, options.get("revision"))
        if served is not None:
            options.pop("revision", None)
            options.pop("subfolder", None)
            if owner.__name__ == "AutoTokenizer" and (served / _STAND_IN).exists():
                from transformers import PreTrainedTokenizerFast

                # As its file says; the class of some models, such as Qwen2, ignores the file.
                options.pop("use_fast", None)
                return PreTrainedTokenizerFast.from_pretrained(str(served), *rest, **options)
        return function(cls, name if served is None else str(served), *rest, **options)

    from_pretrained.__wrapped_by_oomdoctor__ = True  # type: ignore[attr-defined]
    owner.from_pretrained = classmethod(from_pretrained)


def served_folder(name: str, folder: Path, revision: str | None = None) -> Path | None:
    """The folder to load instead of `name`; made at the first call. None: load as ever.

    Several ranks may ask at the same time: one makes it, the others wait.
    """
    local = Path(name)
    weights = (path for pattern in _WEIGHTS for path in local.glob(pattern))
    if local.is_dir() and (any(weights) or not (local / "config.json").is_file()):
        return None
    target = folder / (re.sub(r"[^\w.-]+", "--", name.strip("/")) or _MARK)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / _MARK).exists():
            # zero.Init changes how modules are made, and lets ranks wait for each other there.
            here = "deepspeed" not in sys.modules
            (make if here else _make_apart)(name, target, revision)
    return target


def _make_apart(name: str, target: Path, revision: str | None) -> None:
    """Make the folder in another process."""
    code = (
        "import sys, pathlib; from oomdoctor.monitor.inside.serve import make; "
        "make(sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3] or None)"
    )
    environment = {name: text for name, text in all_variables().items() if name != WATCH_FOLDER}
    words = [sys.executable, "-c", code, name, str(target), revision or ""]
    subprocess.run(words, env=environment, capture_output=True, check=True)


def make(name: str, target: Path, revision: str | None) -> None:
    """Make the folder of a model: its config, its weights without data and a tokenizer."""
    from oomdoctor.monitor.inside.checkpoint import write_checkpoint, write_tokenizer
    from oomdoctor.records.job.model import ModelRef
    from oomdoctor.system.models.hub import locate

    model = locate(ModelRef(name=name, revision=revision))  # for any task
    facts = {key: value for key, value in model.config.items() if key != "quantization_config"}
    target.mkdir(parents=True, exist_ok=True)
    if model.path is not None:
        _link_small_files(Path(model.path), target)
    (target / "config.json").unlink(missing_ok=True)  # a link; ours is written in its place
    config, model_class, dtype = _model_of(facts)
    write_checkpoint(target, config, model_class, dtype)
    if not any(target.glob("tokenizer*")) and not (target / "vocab.txt").exists():
        # The file of a config leaves out what its class says, such as BERT's padding token.
        given = {key: value for key, value in facts.items() if value is not None}
        write_tokenizer(target, {**config.to_dict(), **given})
        (target / _STAND_IN).touch()
    (target / _MARK).write_text(json.dumps({"id": model.id, "source": model.source}))


def _model_of(facts: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The config, the class and the type of a model's weights, by its config.json."""
    import torch
    import transformers

    from oomdoctor.records.facts.dtypes import checkpoint_dtype
    from oomdoctor.system.models.tasks import architecture_of

    dtype = getattr(torch, checkpoint_dtype(facts), torch.float32)
    named = {key: value for key, value in facts.items() if key != "transformers_version"}
    config = transformers.AutoConfig.for_model(**named)
    model_class = getattr(transformers, architecture_of(facts), None)
    return config, model_class or transformers.AutoModelForCausalLM, dtype


def _link_small_files(source: Path, target: Path) -> None:
    """Link what stands beside the weights: tokenizer, generation settings, custom code."""
    for path in source.iterdir():
        if path.is_file() and not any(path.match(pattern) for pattern in _WEIGHTS):
            if path.name.endswith(".index.json"):
                continue
            (target / path.name).symlink_to(path.resolve())
