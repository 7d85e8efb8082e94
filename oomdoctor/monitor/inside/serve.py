"""Lets `from_pretrained` find a checkpoint without data instead of the one that is not there.

The first argument of `from_pretrained` becomes a folder; transformers and diffusers do the rest.
`snapshot_download` of a hub's library returns that folder.
Names that cannot be found anywhere, and folders and models that are not for this, are left as they
are. What has a subfolder, or is loaded by diffusers, is looked for as a pipeline first.
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
from oomdoctor.monitor.inside.pipeline import STAND_IN, WEIGHTS, link_small_files
from oomdoctor.monitor.shared_folder import asked
from oomdoctor.system.environment import WATCH_FOLDER, all_variables, variable

# Modules and their classes whose `from_pretrained` or `load_config` takes a model's name.
CLASSES = {
    "diffusers.configuration_utils": ("ConfigMixin",),
    "diffusers.models.modeling_utils": ("ModelMixin",),
    "diffusers.schedulers.scheduling_utils": ("SchedulerMixin",),
    "diffusers.pipelines.pipeline_utils": ("DiffusionPipeline",),
    "transformers.modeling_utils": ("PreTrainedModel",),
    "transformers.models.auto.auto_factory": ("_BaseAutoModelClass",),
    "transformers.models.auto.configuration_auto": ("AutoConfig",),
    "transformers.models.auto.tokenization_auto": ("AutoTokenizer",),
    "transformers.configuration_utils": ("PretrainedConfig", "PreTrainedConfig"),
    "transformers.tokenization_utils_base": ("PreTrainedTokenizerBase",),
    "transformers.models.auto.image_processing_auto": ("AutoImageProcessor",),
    "transformers.generation.configuration_utils": ("GenerationConfig",),
}
_METHODS = ("from_pretrained", "load_config")
_TOKENIZERS = ("AutoTokenizer", "PreTrainedTokenizerBase")
_MARK = "oomdoctor-synthetic"


def serve(library: str) -> None:
    """Serve models in every class of a library that loads them, if the parent asks for it."""
    folder = Path(variable(WATCH_FOLDER) or "")
    if asked(folder).get("weights") == "synthetic":
        for module in CLASSES:
            if module.startswith(f"{library}."):
                after_import(module, functools.partial(serve_in, module, folder / "weights"))


def serve_in(module: str, folder: Path) -> None:
    """Serve models from `folder` in the classes of an imported module."""
    for name in CLASSES[module]:
        served = getattr(sys.modules[module], name, None)
        for method in _METHODS:
            if served is not None and method in vars(served):
                _wrap(served, method, folder)


def serve_downloads(module: str) -> None:
    """Serve models in the `snapshot_download` of an imported module, if the parent asks for it."""
    folder = Path(variable(WATCH_FOLDER) or "")
    if asked(folder).get("weights") == "synthetic":
        serve_download(module, folder / "weights")


def serve_download(module: str, folder: Path) -> None:
    """Serve models from `folder` in the `snapshot_download` of an imported module.

    A download to a folder that the caller names stays as it is: its next run would take what is
    there for the real weights.
    """
    original = sys.modules[module].snapshot_download
    takes = inspect.signature(original)

    @functools.wraps(original)
    def snapshot_download(*given: Any, **options: Any) -> Any:
        with suppress(Exception):  # what cannot be served is downloaded as ever
            asks = takes.bind(*given, **options).arguments
            name = asks.get("repo_id") or asks["model_id"]
            is_model = asks.get("repo_type") in (None, "model")
            if is_model and not asks.get("local_dir") and not asks.get("dry_run"):
                revision = asks.get("revision") if module.startswith("huggingface_hub.") else None
                return str(_served_repository(name, folder, revision))
        return original(*given, **options)

    sys.modules[module].snapshot_download = snapshot_download  # type: ignore[attr-defined]


def _served_repository(name: str, folder: Path, revision: str | None) -> Path:
    """The folder of a model, or of a pipeline where there is no model of that name.

    Raises:
        Exception: there is neither; any library may raise anything.
    """
    with suppress(Exception):
        return _made("make", name, folder, revision or "")
    return _made("make_pipeline", name, folder, revision or "", "", "")


def _wrap(owner: Any, method: str, folder: Path) -> None:
    original: Any = vars(owner)[method]
    function: Callable[..., Any] = getattr(original, "__func__", original)
    if getattr(function, "__wrapped_by_oomdoctor__", False):
        return

    named = next(islice(inspect.signature(function).parameters, 1, None))
    is_diffusers = owner.__module__.startswith("diffusers.")

    @functools.wraps(function)
    def loaded(cls: Any, *given: Any, **options: Any) -> Any:
        name, rest = (given[0], given[1:]) if given else (options.pop(named, None), ())
        if isinstance(name, (str, Path)):
            name = _location(name, folder, options, is_diffusers=is_diffusers)
            part = Path(name) / (options.get("subfolder") or "")
            if owner.__name__ in _TOKENIZERS and (part / STAND_IN).exists():
                from transformers import PreTrainedTokenizerFast

                # As its file says; the class of some models, such as Qwen2, ignores the file.
                options.pop("use_fast", None)
                if not issubclass(PreTrainedTokenizerFast, cls) or cls is owner:
                    return PreTrainedTokenizerFast.from_pretrained(name, *rest, **options)
        return function(cls, name, *rest, **options)

    loaded.__wrapped_by_oomdoctor__ = True  # type: ignore[attr-defined]
    setattr(owner, method, classmethod(loaded))


def _location(
    name: str | Path, folder: Path, options: dict[str, Any], *, is_diffusers: bool
) -> str | Path:
    """The folder to load instead of `name`, or `name`; `options` lose what it has no use for."""
    revision = options.get("revision")
    served = None
    with suppress(Exception):  # what cannot be served is loaded as ever
        if is_diffusers or options.get("subfolder"):
            dtype = _named_types(options.get("torch_dtype") or options.get("dtype"))
            served = served_pipeline(
                str(name), folder, revision, variant=options.get("variant"), dtype=dtype
            )
            gone = ("revision", "variant")
    if served is None and not is_diffusers:
        with suppress(Exception):
            served = served_folder(str(name), folder, revision)
            gone = ("revision", "subfolder")
    if served is None:
        return name
    for option in gone:
        options.pop(option, None)
    return str(served)


def served_folder(name: str, folder: Path, revision: str | None = None) -> Path | None:
    """The folder to load instead of the model `name`; made at the first call. None: load as ever.

    Several ranks may ask at the same time: one makes it, the others wait.
    """
    local = Path(name)
    if local.is_dir() and (_has_weights(local) or not (local / "config.json").is_file()):
        return None
    return _made("make", name, folder, revision or "")


def served_pipeline(
    name: str,
    folder: Path,
    revision: str | None = None,
    *,
    variant: str | None = None,
    dtype: str = "",
) -> Path | None:
    """The folder to load instead of the pipeline `name`, as `served_folder`.

    Weights are stored in the type that is asked for (`_named_types`): nothing is converted on the
    host, where these tensors take no memory.
    """
    local = Path(name)
    if local.is_dir() and (
        not (local / "model_index.json").is_file()
        or any(_has_weights(part) for part in local.iterdir() if part.is_dir())
    ):
        return None
    return _made("make_pipeline", name, folder, revision or "", variant or "", dtype)


def _named_types(asked: Any) -> str:
    """A type, or types by part, as words: bfloat16, or transformer=bfloat16,default=float32."""
    if isinstance(asked, dict):
        return ",".join(f"{part}={_named_types(kind)}" for part, kind in asked.items())
    name = str(asked or "").removeprefix("torch.")
    return "" if name == "auto" else name


def _has_weights(folder: Path) -> bool:
    return any(path for pattern in WEIGHTS for path in folder.glob(pattern))


def _made(maker: str, name: str, folder: Path, *how: str) -> Path:
    """The folder of a model or pipeline, made by the function `maker` if it is not there.

    Raises:
        Exception: it cannot be made; any library may raise anything.
    """
    words = "--".join(filter(None, (name.strip("/"), *how[1:])))
    target = folder / (re.sub(r"[^\w.-]+", "--", words) or _MARK)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / _MARK).exists():
            # zero.Init changes how modules are made, and lets ranks wait for each other there.
            if "deepspeed" in sys.modules:
                _make_apart(maker, name, str(target), *how)
            else:
                globals()[maker](name, target, *how)
    return target


def _make_apart(maker: str, *words: str) -> None:
    """Make the folder in another process."""
    code = (
        "import sys, pathlib; from oomdoctor.monitor.inside import serve; "
        "maker, name, target, *how = sys.argv[1:]; "
        "getattr(serve, maker)(name, pathlib.Path(target), *how)"
    )
    environment = {name: text for name, text in all_variables().items() if name != WATCH_FOLDER}
    command = [sys.executable, "-c", code, maker, *words]
    subprocess.run(command, env=environment, capture_output=True, check=True)


def make_pipeline(
    name: str, target: Path, revision: str = "", variant: str = "", dtype: str = ""
) -> None:
    """Make the folder of a pipeline: its parts, each with its config and weights without data.

    Raises:
        LookupError: nobody has a pipeline of that name.
    """
    from oomdoctor.monitor.inside.pipeline import write_pipeline
    from oomdoctor.records.job.model import ModelRef
    from oomdoctor.system.models.pipelines import locate_pipeline

    pipeline = locate_pipeline(ModelRef(name=name, revision=revision or None))
    if pipeline is None:
        raise LookupError(name)
    target.mkdir(parents=True, exist_ok=True)
    write_pipeline(target, pipeline, variant, dtype)
    (target / _MARK).write_text(json.dumps({"id": pipeline.id}))


def make(name: str, target: Path, revision: str = "") -> None:
    """Make the folder of a model: its config, its weights without data and a tokenizer."""
    from oomdoctor.monitor.inside.checkpoint import write_checkpoint, write_tokenizer
    from oomdoctor.records.job.model import ModelRef
    from oomdoctor.system.models.hub import locate

    model = locate(ModelRef(name=name, revision=revision or None))  # for any task
    facts = {key: value for key, value in model.config.items() if key != "quantization_config"}
    target.mkdir(parents=True, exist_ok=True)
    if model.path is not None:
        link_small_files(Path(model.path), target)
    (target / "config.json").unlink(missing_ok=True)  # a link; ours is written in its place
    config, model_class, dtype = _model_of(facts)
    write_checkpoint(target, config, model_class, dtype)
    if not any(target.glob("tokenizer*")) and not (target / "vocab.txt").exists():
        # The file of a config leaves out what its class says, such as BERT's padding token.
        given = {key: value for key, value in facts.items() if value is not None}
        write_tokenizer(target, {**config.to_dict(), **given})
        (target / STAND_IN).touch()
    processor = target / "preprocessor_config.json"
    if not processor.exists() and _takes_images(config):
        processor.write_text("{}")  # the class of the model's type, with its defaults
    (target / _MARK).write_text(json.dumps({"id": model.id, "source": model.source}))


def _takes_images(config: Any) -> bool:
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING

    return type(config) in IMAGE_PROCESSOR_MAPPING


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
