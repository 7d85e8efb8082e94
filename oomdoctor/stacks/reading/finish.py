"""From a draft to the training: fills in what the files leave open, and checks the rung.

What a rung does not have beside its other settings is taken out, and said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from oomdoctor.errors import usage_error
from oomdoctor.records.configuration.adapters import without_usual_dtype
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.configuration.faults import config_faults, unsloth_faults
from oomdoctor.records.configuration.keys import KEYS, dropped_faults, settled
from oomdoctor.records.facts.checkpoints import checkpoint_of
from oomdoctor.records.facts.dtypes import TRAINED, checkpoint_dtype
from oomdoctor.records.report.user_training import (
    NO_LENGTH,
    Assumed,
    NotTaken,
    Said,
    TrainingFile,
    UserTraining,
)
from oomdoctor.stacks.names.row import by_name, settings_data, shown
from oomdoctor.stacks.partial_config import PartialConfig, RungKeys, only, without
from oomdoctor.stacks.programs.program import OF_WEIGHTS, Program
from oomdoctor.stacks.programs.trl import in_chunks
from oomdoctor.stacks.reading.conclude import conclude, mesh_of
from oomdoctor.stacks.reading.merge import Draft, bad_config, left_out

_LENGTH = 2048
ModelConfig = Callable[[], Mapping[str, object]]
"""Gives the content of the model's config.json, or an empty one."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the command line says instead of the files; None where it says nothing."""

    gpus: int | None = None
    sequence_length: int | None = None
    effective_batch_size: int | None = None
    micro_batch_size: int | None = None

    def by_key(self) -> dict[str, tuple[str, int]]:
        """The keys that are set, with their options."""
        options = {
            "world_size": ("--gpus", self.gpus),
            "sequence_length": ("--seq-len", self.sequence_length),
            "effective_batch_size": ("--effective-batch", self.effective_batch_size),
            "micro_batch_size": ("--micro-batch", self.micro_batch_size),
        }
        return {key: (name, value) for key, (name, value) in options.items() if value is not None}


def finished(
    draft: Draft,
    model_config: ModelConfig = dict,
    overrides: Overrides | None = None,
    *,
    on_gpus: bool = True,
) -> UserTraining:
    """The training of a draft. `model_config` gives the content of the model's config.json; it
    is called only if the model decides something. Without `on_gpus`, the number of GPUs may be
    open, and is then 1.

    Raises:
        OomDoctorError: the settings contradict each other, or shard over an unknown number of
            GPUs (exit 2).
    """
    given = (overrides or Overrides()).by_key()
    values = draft.values | _gpus_of_batch(draft.values)
    for key, (_, value) in given.items():
        values |= only(key, value)
    if "micro_batch_size" in given and "micro_batch_size" in draft.values:
        values["batch_of_micro"] = draft.values["micro_batch_size"]
    values |= _gpus_of_mesh(values, draft.main.program)
    filled = without(draft.defaults, values)
    partial = filled | values
    settings = conclude(partial, draft.main.program, draft.values)
    if "sequence_length" in given:  # where it is that of a prompt and a completion
        settings["sequence_length"] = given["sequence_length"][1]
    assumed = _assumed(draft, settings, filled)
    settings |= _of_checkpoint(settings, partial, model_config, assumed)
    settings |= _of_model(settings, model_config, assumed)
    if settings.get("adapter_dtype") == OF_WEIGHTS:
        settings["adapter_dtype"] = settings["weights_dtype"]
    settings |= _frozen(partial, model_config)
    settings = _without_images(settings, values, model_config, assumed)
    library = in_chunks(draft.main.document, settings)
    if library is not None and "vision_config" not in model_config():
        settings["loss"] = "chunked"
        assumed["loss"] = f"SFTTrainer computes the loss in chunks in {library}"
    if on_gpus:
        _check_gpus(draft, settings, partial)
    _check_mesh(draft, settings, partial)
    if "sequence_length" not in settings:
        settings["sequence_length"] = _LENGTH
        assumed["sequence_length"] = NO_LENGTH
    if "objective" not in draft.values and settings.get("objective") == "dpo" and "beta" in values:
        assumed["objective"] = "beta belongs to DPO; trainers such as ORPO have no reference model"
    assumed |= _sizes_beside(settings, partial, draft.model)
    checked: dict[str, Any] = {**settings}  # words that the tables have checked
    config = without_usual_dtype(_with_library(TrainConfig(**checked), assumed))
    if config.adapter_dtype != "default" and "adapter_dtype" not in draft.values:
        reason = draft.main.program.why_adapters
        assumed |= {} if reason is None else {"adapter_dtype": reason}
    behind = {key: [line] for key, line in draft.said.items() if key in KEYS} | {
        key: [draft.said[name] for name in names if name in draft.said]
        for key, names in _BEHIND_ALL.items()
    }
    config, left = within(config, behind, draft.main.document.path)
    _check(draft, config)
    replaced = _replaced(draft.said, given)
    read = [(taken.document, taken.program.name) for taken in draft.taken]
    return UserTraining(
        files=tuple(TrainingFile(document.path, name, document.parser) for document, name in read),
        model=draft.model,
        revision=draft.values.get("revision"),
        task=None,
        config=config,
        said=(*(line for key, line in draft.said.items() if key not in replaced), *draft.also),
        not_taken=(*draft.not_taken, *left, *replaced.values()),
        assumed=tuple(
            Assumed(key, shown(getattr(config, key)), reason)
            for key, reason in assumed.items()
            if key in KEYS
        ),
    )


def _gpus_of_batch(values: PartialConfig) -> PartialConfig:
    """The number of GPUs behind DeepSpeed's batch sizes, if all three are known."""
    whole, micro = values.get("effective_batch_size"), values.get("micro_batch_size")
    if whole is None or micro is None or "world_size" in values:
        return {}
    gpus, rest = divmod(whole, micro * values.get("accumulation_steps", 1))
    return {"world_size": gpus} if gpus >= 1 and not rest and "zero_stage" in values else {}


def _gpus_of_mesh(values: PartialConfig, program: Program) -> PartialConfig:
    """The number of GPUs behind accelerate's `ParallelismConfig`, or what a program adds to it."""
    gpus, world = mesh_of(values), values.get("world_size")
    if gpus == 1 or world == gpus:
        return {}
    if world is None:
        return {"world_size": gpus}
    fills = program.fills_mesh and "data_parallel_replicas" not in values and not world % gpus
    return {"data_parallel_replicas": world // gpus} if fills else {}


# A key of the rung -> the values behind it, if it is not its own name.
_BEHIND = {
    "activation_checkpointing": ("checkpointing", "fsdp_checkpointing"),
    "effective_batch_size": ("accumulation_steps", "effective_batch_size"),
    "autocast_dtype": ("mixed_bfloat16", "mixed_float16"),
    "method": ("use_peft", "method"),
}
_BEHIND_ALL = {
    "packing": ("trl_packing", "trl_padding_free"),
    "padding": ("pads_to",),
    "fp8": ("fp8_on",),
    "bucket_elements": ("bucket_elements", "bucket_mib"),
    "activation_checkpointing": ("checkpoint_offload", "checkpoint_every", "checkpointing"),
}
# Values that say nothing that a reader would want to know.
_PLAIN = {"activation_checkpointing": "none", "autocast_dtype": "none", "method": "full"}


def _assumed(draft: Draft, settings: RungKeys, filled: PartialConfig) -> dict[str, str]:
    """The keys that come from defaults, with their source."""
    sources_of: dict[str, str] = {}
    for key, value in settings.items():
        behind = _BEHIND.get(key, (key,))
        if any(name in draft.values for name in behind) or _PLAIN.get(key) == value:
            continue
        sources = [draft.sources[name] for name in behind if name in filled]
        if sources and key != "effective_batch_size":
            sources_of[key] = sources[0]
    return sources_of


def _of_checkpoint(
    settings: RungKeys, partial: PartialConfig, asked: ModelConfig, assumed: dict[str, str]
) -> RungKeys:
    """Adapters on a quantized checkpoint as it is stored, which no setting has to say."""
    if settings["method"] == "full" or partial.get("stored") is False:
        return {}
    own = asked().get("quantization_config")
    row = checkpoint_of(own if isinstance(own, dict) else None)
    if not partial.get("stored") and (row is None or not row.stored):
        return {}
    if row is not None:
        assumed["quantization"] = f"the checkpoint is {row.name}, by the model's config.json"
    return {"method": "qlora", "quantization": "checkpoint"}


def _of_model(settings: RungKeys, asked: ModelConfig, assumed: dict[str, str]) -> RungKeys:
    """What the model decides: the dtype of its weights, and peft's modules for it."""
    rung: RungKeys = {}
    open_dtype = settings.get("weights_dtype") == "auto"
    open_targets = settings["method"] != "full" and "lora_targets" not in settings
    model_config = asked() if open_dtype or open_targets else {}
    if open_dtype:
        own = checkpoint_dtype(model_config) if model_config else ""
        rung["weights_dtype"] = own if own in TRAINED else "bfloat16"
        unnamed = "the files name no dtype, and most checkpoints have this one"
        named = "the dtype of the checkpoint, by the model's config.json"
        assumed["weights_dtype"] = named if own in TRAINED else unnamed
    if open_targets:
        targets = by_name(settings_data()["peft-targets"])
        modules = tuple(targets.get(str(model_config.get("model_type")), "").split())
        rung["lora_targets"] = modules or "all-linear"
        unknown = "the files name no modules, and peft's choice for this model is not known here"
        assumed["lora_targets"] = "what peft adapts in this architecture" if modules else unknown
    return rung


def _sizes_beside(settings: RungKeys, partial: PartialConfig, model: str | None) -> dict[str, str]:
    """Why a critic and a reward model have the size of the model."""
    named = {"critic": partial.get("critic_name"), "reward_model": partial.get("reward_name")}
    return {
        key: f"{name or 'it'} is assumed to be as large as the model"
        for key, name in named.items()
        if key in settings and name != model
    }


def _frozen(partial: PartialConfig, asked: ModelConfig) -> RungKeys:
    """The first layers, if a file says how many of the last are trained."""
    if not partial.get("freezes"):
        return {}
    layers = asked().get("num_hidden_layers")
    trained = partial.get("trainable_layers", 0)
    return {"frozen_layers": max(0, layers - trained)} if isinstance(layers, int) else {}


def _without_images(
    settings: RungKeys, values: PartialConfig, asked: ModelConfig, assumed: dict[str, str]
) -> RungKeys:
    """The keys, without those about images for a model that takes text alone."""
    keys = [key for key in ("vision", "images", "image_size") if key in settings]
    config = asked() if keys else {}
    if "vision_config" in config:
        return settings
    unused = [key for key in keys if config or key not in values]
    for key in unused:
        assumed.pop(key, None)
    return without(settings, unused)


def _check_gpus(draft: Draft, settings: RungKeys, partial: PartialConfig) -> None:
    sharding = settings.get("sharding", "none")
    several = settings.get("world_size", 1) > 1
    counted = not {"world_size", "gpus_of_node"}.isdisjoint(draft.values)
    alone = settings.get("world_size", partial.get("world_size")) == 1 and counted
    if sharding == "none" or several or alone:
        return
    files = [draft.said[key].file for key in ("zero_stage", "fsdp", "distributed")
             if key in draft.said]  # fmt: skip
    where = (*files, draft.main.document.path)[0]
    raise usage_error(
        "gpus_unknown",
        f"--from: {where} trains with {sharding}, but no file says on how many GPUs",
        "add --gpus N, or --from the configuration of accelerate launch",
    )


def _check_mesh(draft: Draft, settings: RungKeys, partial: PartialConfig) -> None:
    """What accelerate refuses of a `ParallelismConfig` (1.15), as far as no rung says it."""
    gpus, world = mesh_of(partial), settings.get("world_size", 1)
    shared, sharding = partial.get("context_parallel_size", 1), settings.get("sharding", "none")
    where = draft.main.document.path
    if sharding == "tensor_parallel":
        size = partial.get("tensor_parallel_size", world)
        others = [key for key in ("fsdp", "zero_stage") if partial.get(key)]
        if size != world or others or shared > 1:
            what = f"oomdoctor plans tensor parallelism over all GPUs, and these are {world}"
            raise bad_config(where, what, "leave out FSDP, DeepSpeed and the other sizes")
    if gpus == 1:
        return
    ulysses = partial.get("ulysses_size", 1)
    if ulysses > 1:
        if not sharding.startswith("zero"):
            what = f"GPUs share sequences by sp_size with DeepSpeed alone, and this is {sharding}"
            raise bad_config(where, what, "pass the file of DeepSpeed too")
        if shared > 1:
            raise bad_config(where, "cp_size and sp_size are both above 1", "choose one of them")
        return  # accelerate leaves the number of GPUs to DeepSpeed
    if gpus != world:
        product = "dp_replicate_size x dp_shard_size x cp_size x tp_size"
        raise bad_config(
            where, f"{product} is {gpus}, but there are {world} GPUs", "make both equal"
        )
    if shared > 1 and sharding not in ("fsdp", "fsdp_grad_op"):
        what = f"GPUs share sequences with FSDP 2 alone, and this is {sharding}"
        raise bad_config(where, what, "pass the file of accelerate launch that turns FSDP 2 on")


def _with_library(config: TrainConfig, assumed: dict[str, str]) -> TrainConfig:
    """With transformers where a rung cannot have the rest with Unsloth, as `assumed` then says."""
    faults = list(unsloth_faults(settled(config)))
    if not faults:
        return config
    assumed["library"] = "; ".join(f"{key}: {what}" for key, what in faults)
    return replace(config, library="transformers")


def _check(draft: Draft, config: TrainConfig) -> None:
    lines = []
    for key, what in config_faults(config):
        names = [s.name for k, s in draft.said.items() if k in _BEHIND.get(key, (key,))]
        lines.append(f"{' and '.join(names) or key}: {what}")
    if lines:
        hint = "fix the file, or set the value with an option such as --micro-batch or --gpus"
        raise bad_config(draft.main.document.path, "; ".join(lines), hint)


def _replaced(
    said: Mapping[str, Said], given: Mapping[str, tuple[str, int]]
) -> dict[str, NotTaken]:
    """The settings that options replace, by key."""
    both = {key: (line, *given[key]) for key, line in said.items() if key in given}
    return {
        key: left_out(line, f"{option} says {value}")
        for key, (line, option, value) in both.items()
        if line.value != str(value)
    }


def within(
    config: TrainConfig, said: Mapping[str, Sequence[Said]], where: str
) -> tuple[TrainConfig, tuple[NotTaken, ...]]:
    """The nearest rung, and the settings that it leaves out or that mean nothing in it.

    `said` are the settings behind each key. Faults of other keys stay: the program refuses them
    as well.
    """
    left: list[NotTaken] = []
    for key, what in config_faults(config):
        tries = ((value, replace(config, **{key: value})) for value in KEYS[key].instead)
        fitting = (pair for pair in tries if key not in dict(config_faults(pair[1])))
        if (nearest := next(fitting, None)) is not None:
            value, config = nearest
            reason = f"oomdoctor cannot combine it: {what}"
            unsaid = NotTaken(key, str(value), where, None, reason, True)
            left += [left_out(line, reason) for line in said.get(key, ())] or [unsaid]
    named = [key for key in said if KEYS[key].settles is None]
    dropped = dropped_faults(config, named)
    left += [left_out(line, what) for key, what in dropped for line in said[key]]
    return settled(config), tuple(left)
