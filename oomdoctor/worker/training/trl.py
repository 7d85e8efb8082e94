"""TRL's trainers for DPO, reward models, GRPO and the loss in chunks, with TRL's own step.

TRL prepares data and models in the constructor. Data are a single row that is never read, because
the step gets batches of the rung's shapes. Read from TRL 1.16.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch.nn import Module

from oomdoctor.records.configuration.config import (
    TrainConfig,
    has_reference_model,
    is_fsdp,
    scored_tokens,
    trains_with_trl,
)
from oomdoctor.stacks.names.techniques import beta_of
from oomdoctor.worker.protocol import UnsupportedError, refused
from oomdoctor.worker.replacing import replaced
from oomdoctor.worker.training.batch import Batch, padding_token
from oomdoctor.worker.training.loading import load_model
from oomdoctor.worker.training.setup import OnPhase, Setup
from oomdoctor.worker.training.sharding import fsdp_plugin, moved_with_values
from oomdoctor.worker.training.techniques.adapter import add_adapter

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedModel, PreTrainedTokenizerFast, Trainer, TrainingArguments

INSTALL = "pip install 'oomdoctor[trl]'"
_NAMES = {"default": "SFT", "dpo": "DPO", "reward": "Reward", "grpo": "GRPO"}
_ROW = {"prompt": [""], "prompt_ids": [[1]], "chosen_ids": [[1]], "rejected_ids": [[1]]}


def arguments_class(config: TrainConfig) -> type[TrainingArguments]:
    """The class of the Trainer's arguments.

    Raises:
        UnsupportedError: TRL is missing or too old.
    """
    if not trains_with_trl(config):
        owner, name = importlib.import_module("transformers"), "TrainingArguments"
    else:
        owner, name = _trl(), f"{_NAMES[config.objective]}Config"
    kind: type[TrainingArguments] = getattr(owner, name)
    return kind


def objective_arguments(config: TrainConfig) -> dict[str, object]:
    """What TRL's arguments have beside those of transformers."""
    if not trains_with_trl(config):
        return {}
    # The rung says what is checkpointed; TRL's reference pass turns it off and on again with these.
    arguments: dict[str, object] = {
        "gradient_checkpointing": False,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
    }
    if config.objective == "grpo":
        arguments["num_generations"] = config.num_generations
        # TRL's own, except where one rank is simulated alone, whose share of a group is no group.
        whole = math.lcm(config.effective_batch_size, config.num_generations)
        arguments["generation_batch_size"] = whole
        arguments["max_completion_length"] = scored_tokens(config)
        arguments["beta"] = beta_of(config)
        return arguments
    arguments["max_length"] = config.sequence_length
    if config.objective == "dpo":
        arguments["precompute_ref_log_probs"] = config.reference == "precomputed"
    return arguments


def make_trl_trainer(setup: Setup) -> None:
    """Make TRL's trainer, which wraps the model if the rung has adapters.

    It gets the second model that full fine-tuning with DPO needs.

    Raises:
        UnsupportedError: TRL cannot train this rung.
    """
    trl = _trl()
    from datasets import Dataset

    model, config = setup.model, setup.config
    name = f"{_NAMES[config.objective]}Trainer"
    module = importlib.import_module(f"trl.trainer.{_NAMES[config.objective].lower()}_trainer")
    given: dict[str, object] = {}
    if config.method != "full":
        from peft import LoraConfig

        given["peft_config"] = LoraConfig()  # `adapted` has the rung's
    if config.objective == "grpo":
        given["reward_funcs"] = _reward
    elif has_reference_model(config):
        given["ref_model"] = load_model(setup)[0]
    own: dict[str, torch.dtype] = {}  # of each weight that is trained

    def noted(model: PreTrainedModel) -> Module:
        adapted = add_adapter(model, config, setup.job.model.task)
        own.update(
            {
                name: parameter.dtype
                for name, parameter in adapted.named_parameters()
                if parameter.requires_grad
            }
        )
        return adapted

    sharded = is_fsdp(config) and config.fsdp_version == 2
    parts = _own_parts(module, noted, lambda: load_model(setup)[0])
    kinds = (ValueError, ImportError, NotImplementedError)
    rejecting = refused(f"TRL's {name} rejects this configuration", *kinds)
    with parts, moved_with_values() if sharded else nullcontext(), rejecting:
        setup.trainer = _class(getattr(trl, name), setup.on_phase, config)(
            model=model,
            args=setup.arguments,
            train_dataset=Dataset.from_dict(_ROW),
            processing_class=tokenizer_of(model),
            **given,
        )
    if config.objective == "default" or config.adapter_dtype != "default":
        _undo_cast(setup.trainer.model, own)
    setup.model = setup.trainer.model


def _undo_cast(model: Module, own: Mapping[str, torch.dtype]) -> None:
    """Undo the cast to bfloat16 that TRL makes in quantized models: the rung has `own` dtypes."""
    for name, parameter in model.named_parameters():
        if name in own:
            parameter.data = parameter.data.to(own[name])


def _class(trainer: type[Trainer], on_phase: OnPhase | None, config: TrainConfig) -> type[Trainer]:
    class TrlTrainer(phased(trainer, on_phase)):  # type: ignore[misc]
        """TRL's trainer without its data: batches come from the rung."""

        def create_accelerator_and_postprocess(self) -> None:
            super().create_accelerator_and_postprocess()
            if is_fsdp(config):  # TRL shards the reference before anything else is prepared
                fsdp_plugin(self)

        def _prepare_dataset(self, dataset: Dataset, *_: object, **__: object) -> Dataset:
            return dataset

        def _precompute_ref_logps(self, dataset: Dataset, *_: object, **__: object) -> Dataset:
            return dataset  # one forward pass without gradients, which needs less than the step

        def _prepare_inputs(self, inputs: Batch) -> Batch:
            if config.objective == "grpo":  # the completions were generated and scored before
                return inputs
            prepared: Batch = super()._prepare_inputs(inputs)
            return prepared

    return TrlTrainer


def _reward(completions: list[object], **_: object) -> list[float]:
    """A reward that is never asked for."""
    return [0.0] * len(completions)


@contextmanager
def _own_parts(
    module: ModuleType,
    adapted: Callable[[PreTrainedModel], Module],
    reference: Callable[[], PreTrainedModel],
) -> Iterator[None]:
    """Let TRL wrap the model as the rung says, and take the reference from here.

    It also names a cache by all weights, which nobody reads here.
    """
    parts: dict[str, object] = {
        "get_peft_model": lambda model, *_, **__: adapted(model),
        "hash_module": lambda _: "",
        "create_model_from_path": lambda *_, **__: reference(),
    }
    with ExitStack() as stack:
        for name in parts:
            if hasattr(module, name):
                stack.enter_context(replaced(module, name, parts[name]))
        yield


def tokenizer_of(model: PreTrainedModel) -> PreTrainedTokenizerFast:
    """A tokenizer with the model's own number for padding, which TRL writes into the model."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    pad = padding_token(model.config.get_text_config())
    words = {"<pad>": pad, "</s>": 1 if pad == 0 else 0}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="<pad>")),
        pad_token="<pad>",
        eos_token="</s>",
    )


def _trl() -> ModuleType:
    """The package.

    Raises:
        UnsupportedError: it is missing, or its parts have other names.
    """
    try:
        trl = importlib.import_module("trl")
        importlib.import_module("trl.kernels")
    except ImportError as error:
        raise UnsupportedError(f"needs TRL 1.16 or later: {INSTALL} ({error})") from error
    return trl


def phased(trainer: type[Trainer], on_phase: OnPhase | None) -> type[Trainer]:
    """A subclass of `trainer` that calls `on_phase` after each forward pass of training."""

    class PhasedTrainer(trainer):  # type: ignore[misc]
        """The Trainer; it also says when the forward pass of its step ends."""

        def compute_loss(self, *args: object, **kwargs: object) -> torch.Tensor:
            result = super().compute_loss(*args, **kwargs)
            if on_phase is not None and self.model.training:
                on_phase("backward")
            return result

        def _send_telemetry(self) -> None:
            """TRL tells its authors about each trainer; a rung is no training of theirs."""

    return PhasedTrainer
