"""What a Trainer holds at least after its steps: to evaluate, to generate and to save.

Lower bounds from sizes alone; the steps themselves are simulated. Weights and optimizer states
stay on the GPU. What is added, by the code of transformers 5.24 and torch 2.13:

- An evaluation has the logits of a batch, of decoders a copy in float32, and their log-softmax
  (`ForCausalLMLoss` in loss/loss_utils.py; modeling_t5.py), and with mixed precision autocast's
  copies of the trained linear weights. TRL's losses and Liger's need not have the logits.
- With metrics, logits are kept for all rows, or for `eval_accumulation_steps` batches, from all
  GPUs. They are joined batch by batch, so they are there twice (`torch_pad_and_concatenate` in
  trainer_pt_utils.py). With mixed precision accelerate makes them float32, except with FSDP.
- A generation has keys, values and the scores of a token. The loss of the batch comes after it.
- DDP keeps its buckets of gradients. FSDP and ZeRO-3 save whole tensors, one by one; the
  embedding is the largest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from oomdoctor.analysis.memory.closed_form import shards_of
from oomdoctor.analysis.memory.rollout import cache_bytes, is_tied
from oomdoctor.analysis.memory.shape import Shape, shape_of
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.facts.dtypes import dtype_bytes
from oomdoctor.records.job.measurement import Breakdown
from oomdoctor.records.job.model import Task
from oomdoctor.records.job.result import ProbeResult

_EVAL_BATCH = 8  # transformers' default
_FLOAT = 4
_HALF = 2
_GENERATED = 20  # tokens, transformers' default
READ = frozenset((
    "per_device_eval_batch_size", "eval_accumulation_steps", "eval_do_concat_batches",
    "batch_eval_metrics", "prediction_loss_only", "eval_strategy", "predict_with_generate",
    "generation_max_length", "generation_num_beams", "fsdp_config.state_dict_type",
))  # fmt: skip
"""Settings that decide here, and not in the simulation of the steps."""
_WITH_LOGITS = ("causal-lm", "masked-lm", "seq2seq-lm", "image-text-to-text")
_FSDP = ("fsdp", "fsdp_grad_op", "hybrid")
_GATHERED = (*_FSDP, "zero3")


@dataclass(frozen=True, slots=True)
class LaterPhase:
    """A phase after the steps, and what it needs at least on the device, in bytes."""

    name: str
    at_least_bytes: int


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What a Trainer evaluates: `rows`, and the tokens of the `longest`; None if not known.

    `target` are the tokens of the longest labels. `keeps_logits`: whether it computes metrics from
    logits as they are, without `preprocess_logits_for_metrics`.
    """

    rows: int | None = None
    longest: int | None = None
    target: int | None = None
    keeps_logits: bool = False


def later_phases(
    args: Any,
    result: ProbeResult,
    model: Mapping[str, Any],
    task: Task | None,
    evaluated: tuple[Evaluated, ...] = (),
) -> tuple[LaterPhase, ...]:
    """The phases of a training whose step is `result`. `model` is its config.json.

    `evaluated` are its data sets for evaluation.
    """
    held, peak, reserved = result.breakdown, result.peak_device_bytes, result.peak_reserved_bytes
    shape = shape_of(model)
    if held is None or peak is None or reserved is None or shape.vocabulary is None:
        return ()
    settings = _Settings(args, result, model, shape, task)
    states = peak - reserved + settings.kept_bytes(held)
    phases = []
    if str(getattr(settings.of("eval_strategy"), "value", settings.of("eval_strategy"))) != "no":
        sets = evaluated or (Evaluated(),)
        more = max(settings.evaluation_bytes(rows) for rows in sets)
        name = "evaluation"
        if settings.of("predict_with_generate"):
            name = "generation"
            more = max(more, *(settings.generation_bytes(rows) for rows in sets))
        phases.append(LaterPhase(name, states + more))
    whole = settings.gathered_bytes()
    if whole:
        phases.append(LaterPhase("saving", states + whole))
    return tuple(phases)


@dataclass(frozen=True, slots=True)
class _Settings:
    """A training: its settings, and what is known of its model."""

    args: Any
    result: ProbeResult
    model: Mapping[str, Any]
    shape: Shape
    task: Task | None

    @property
    def config(self) -> TrainConfig:
        return self.result.config

    @property
    def vocabulary(self) -> int:
        return self.shape.vocabulary or 0

    def of(self, name: str) -> Any:
        """A setting of an object or of a dict; "no" evaluation and None are the defaults."""
        args = self.args
        value = args.get(name) if isinstance(args, Mapping) else getattr(args, name, None)
        return "no" if value is None and name == "eval_strategy" else value

    def kept_bytes(self, held: Breakdown) -> int:
        """Weights and states between the steps; `held` is what the peak of the steps has."""
        config, weights = self.config, held.weights_bytes
        if config.method == "full":
            trained = (self.result.trainable_parameters or 0) * dtype_bytes(config.weights_dtype)
            if config.sharding == "ddp":
                weights += trained  # the buckets of gradients stay
            elif config.sharding in _FSDP and not config.frozen_layers:
                weights = min(weights, trained // shards_of(config))  # without gathered layers
        return weights + held.optimizer_bytes

    @property
    def batch(self) -> int:
        """Rows of an evaluation step."""
        return int(self.of("per_device_eval_batch_size") or _EVAL_BATCH)

    def evaluation_bytes(self, evaluated: Evaluated) -> int:
        """What an evaluation adds to weights and states, in bytes."""
        if self.task not in _WITH_LOGITS:
            return 0
        length = evaluated.longest or self.config.sequence_length
        if self.shape.encoder_decoder:
            length = evaluated.target or length
        logits = round(length * self.vocabulary)  # of a row
        rows = self.batch if evaluated.rows is None else min(self.batch, evaluated.rows)
        if not evaluated.keeps_logits or self.of("prediction_loss_only"):
            return self._loss_bytes(rows * logits)
        return self._with_metrics(evaluated.rows or rows, logits * self._kept_width, logits)

    def _with_metrics(self, evaluated: int, row_bytes: int, row_logits: int) -> int:
        """The most of a batch, whose logits are joined to those of the batches before."""
        world = self.config.world_size
        batch = self.batch * world
        batches = min(ceil(evaluated / batch), self.of("eval_accumulation_steps") or evaluated)
        if self.of("batch_eval_metrics"):
            batches = 1
        listed = self.of("eval_do_concat_batches") is False
        most, kept = 0, 0
        for number in range(1, batches + 1):
            # accelerate fills the last batch of several GPUs, and drops the copies when it joins.
            rows = batch if world > 1 else min(batch, evaluated - kept)
            # The logits of the batch before are there twice, unless it was the first one.
            before = kept if listed or number < 3 else kept + batch
            loss = self._loss_bytes(rows // world * row_logits)
            earlier, kept = kept, min(kept + rows, evaluated)
            joined = earlier + rows if listed or number == 1 else earlier + kept + rows
            most = max(most, before * row_bytes + loss, joined * row_bytes)
        return most

    def _loss_bytes(self, logits: int) -> int:
        """The logits, in float32 too, and their log-softmax, for so many numbers."""
        config = self.config
        if config.objective != "default" or config.loss != "default":
            return 0
        mixed = config.autocast_dtype != "none"
        each = dtype_bytes(config.autocast_dtype if mixed else config.weights_dtype)
        if self.of("label_smoothing_factor"):
            return logits * each + self._cast_bytes()
        if self.shape.encoder_decoder or self.task == "masked-lm":  # without a copy in float32
            more = _FLOAT + _HALF if mixed else each  # autocast has another one in 16 bits
            return logits * (each + more) + self._cast_bytes()
        copy = _FLOAT if each != _FLOAT else 0
        return logits * (each + copy + _FLOAT) + self._cast_bytes()

    def _cast_bytes(self) -> int:
        """Autocast's copies of trained float32 weights, which a forward pass keeps."""
        config = self.config
        one_gpu = config.world_size == 1 or config.sharding == "ddp"
        if config.autocast_dtype == "none" or config.weights_dtype != "float32" or not one_gpu:
            return 0
        if config.method != "full":
            return 0
        trained = self.result.trainable_parameters or 0
        looked_up = 0
        if not is_tied(self.model) and not config.frozen_layers:
            looked_up = self.vocabulary * (self.shape.embedding or 0)
        return _HALF * max(0, trained - looked_up)

    @property
    def _kept_width(self) -> int:
        """Bytes of a logit that is kept."""
        config = self.config
        mixed = config.autocast_dtype != "none"
        if mixed and config.sharding in _FSDP:  # it casts by itself; accelerate leaves the logits
            return dtype_bytes(config.autocast_dtype)
        return _FLOAT if mixed else dtype_bytes(config.weights_dtype)

    def generation_bytes(self, evaluated: Evaluated) -> int:
        """What a generation adds: keys and values, and scores; of a decoder with the prompt."""
        rows = self.batch if evaluated.rows is None else min(self.batch, evaluated.rows)
        rows *= self.of("generation_num_beams") or 1
        most = self.of("generation_max_length")
        tokens = most or _GENERATED
        if not self.shape.encoder_decoder:
            prompt = evaluated.longest or self.config.sequence_length
            tokens = max(prompt, most) if most else prompt + _GENERATED
        cache = cache_bytes(self.config, self.model, rows, round(tokens)) or 0
        return cache + rows * self.vocabulary * _FLOAT

    def gathered_bytes(self) -> int:
        """The largest tensor as a whole, if saving puts the shards of a model together."""
        config, hidden = self.config, self.shape.hidden
        if config.world_size == 1 or config.sharding not in _GATHERED or hidden is None:
            return 0
        options = self.of("fsdp_config")
        kind = options.get("state_dict_type", "") if isinstance(options, Mapping) else ""
        if "SHARDED" in str(kind).upper():
            return 0
        each = _HALF if config.sharding == "zero3" else dtype_bytes(config.weights_dtype)
        return self.vocabulary * hidden * each
