"""The command line that asks for a request again, possibly with other options.

It holds every option that differs from its default, quoted for the shell, so it can be pasted. Only
what was to be recorded (--snapshot, --trace) is left out: that is done.
tests/cli/test_next_commands.py reads each line back and compares the request.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields

from oomdoctor.analysis.fit import USUAL_HEADROOM
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.configuration.keys import usual_autocast
from oomdoctor.records.facts.choices import AUTO
from oomdoctor.records.job.dataset import LengthsRequest, TrainingRequest
from oomdoctor.records.report.plan import PlanRequest, Sweep
from oomdoctor.records.report.report import SurveyRequest
from oomdoctor.records.report.user_training import YOURS
from oomdoctor.units import GIB, MIB

_USUAL_TOKENS, _USUAL_EVAL_BATCH = 10**6, 8
_USUAL_RUNG_LIMIT_S = 600.0
_OPTIONS = {
    "sequence_length": "seq-len",
    "micro_batch_size": "micro-batch",
    "lora_rank": "lora-rank",
}


def command_line(request: SurveyRequest, changed: Mapping[str, str | None] | None = None) -> str:
    """The command line of a request; `changed` sets options, or drops them with None."""
    plan = request.plan
    words = ["oomdoctor", "probe" if plan is None else "plan", request.model.name]
    words += [word for text in request.from_files for word in ("--from", text)]
    words += _questions(plan) if plan is not None else []
    options = {**_options(request), **(changed or {})}
    words += [
        word for name, value in options.items() if value is not None for word in (name, value)
    ]
    if not changed or "--recipe" not in changed:
        words += [word for text in _typed_rungs(request) for word in ("--rung", text)]
    return shlex.join([*words, *_flags(request)])


def size_text(size: int) -> str:
    """A size as options read it, without loss."""
    for factor, unit in ((GIB, "GiB"), (MIB, "MiB")):
        if size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size}B"


def sweeps_length(request: SurveyRequest) -> bool:
    """Whether the request is a plan that looks at several sequence lengths."""
    plan = request.plan
    if plan is None:
        return False
    swept = plan.sweep.key if plan.sweep is not None else None
    return "sequence_length" in (swept, plan.solve)


def _questions(plan: PlanRequest) -> list[str]:
    words = ["--all-gpus"] if plan.all_gpus else []
    words += ["--min"] if plan.fewest is not None else []
    words += [word for name in plan.gpus for word in ("--gpu", name)]
    least, usual = plan.min_memory_bytes, "speed" if plan.prices is None else "cost"
    options = {
        "--min-vram": size_text(least) if least is not None else None,
        "--sort": plan.sort if plan.sort != usual else None,
        "--price": plan.prices.source if plan.prices is not None else None,
        "--sweep": _sweep_text(plan.sweep) if plan.sweep is not None else None,
        "--why": plan.why,
        "--solve": _OPTIONS[plan.solve] if plan.solve is not None else None,
        "--interconnect": plan.interconnect if plan.interconnect != "auto" else None,
        "--host-memory": size_text(plan.host_memory_bytes) if plan.host_memory_bytes else None,
    }
    return words + [
        w for name, value in options.items() if value is not None for w in (name, value)
    ]


def _options(request: SurveyRequest) -> dict[str, str | None]:
    """The options with a value, and None for those at their default."""
    model, recipe, lengths = request.model, request.recipe, request.lengths
    probes = request.plan is None
    built = recipe.source in ("built-in", "command line")
    length: str | None = str(request.sequence_length)
    if lengths is not None:
        length = str(lengths.packed_tokens) if lengths.packed_tokens is not None else None
    elif sweeps_length(request):
        length = None
    micro, limit_s = request.micro_batch_size, request.rung_limit_s
    return {
        "--recipe": recipe.name if built else recipe.source,
        "--revision": model.revision,
        "--source": model.source if model.source != "auto" else None,
        "--task": model.task if model.task != "auto" else None,
        "--device": request.device
        if probes and request.device != "auto" and request.emulate is None
        else None,
        "--gpus": _gpus(request),
        "--emulate": request.emulate if probes else None,
        "--ranks": "all" if probes and request.all_ranks else None,
        "--nodes": str(request.nodes) if probes and request.nodes > 1 else None,
        "--vram": size_text(request.vram_bytes) if request.vram_bytes is not None else None,
        **_data_options(lengths),
        **_training_options(request.training),
        "--seq-len": length,
        "--effective-batch": str(request.effective_batch_size),
        "--micro-batch": str(micro) if micro is not None else None,
        "--headroom": _percent(request.headroom),
        "--rank-by": request.rank_by if request.rank_by != "throughput" else None,
        "--tokens": str(request.tokens) if request.tokens != _USUAL_TOKENS else None,
        "--weights": "pretrained" if probes and request.weights == "pretrained" else None,
        "--eval-batch": str(request.eval_batch_size)
        if probes and request.eval_batch_size != _USUAL_EVAL_BATCH
        else None,
        "--seed": str(request.seed) if probes and request.seed else None,
        "--rung-timeout": f"{limit_s:g}s" if probes and limit_s != _USUAL_RUNG_LIMIT_S else None,
        **_interpreter_options(request),
    }


def _gpus(request: SurveyRequest) -> str | None:
    fewest = request.plan.fewest if request.plan is not None else None
    if fewest is not None:
        return f"{fewest.low}..{fewest.high}"
    return str(request.gpus) if request.gpus > 1 else None


def _interpreter_options(request: SurveyRequest) -> dict[str, str | None]:
    if request.versions:  # a probe measures what is installed
        return {"--with": ",".join(request.versions) if request.plan is not None else None}
    return {"--python": request.python if request.python != sys.executable else None}


def _flags(request: SurveyRequest) -> list[str]:
    flags = {
        "--trust-remote-code": request.model.trust_remote_code,
        "--fresh": request.fresh,
        "--eval": request.plan is None and request.evaluate,
        "--no-predict": request.plan is None and not request.predict,
        "--verify": request.plan is not None and request.plan.verify,
    }
    return [flag for flag, is_set in flags.items() if is_set]


def _percent(share: float) -> str | None:
    return f"{share * 100:.10g}%" if share != USUAL_HEADROOM else None


def _training_options(training: TrainingRequest | None) -> dict[str, str | None]:
    if training is None:
        return {}
    return {
        "--rows": None if training.rows is None else str(training.rows),
        "--epochs": None if training.epochs == 1 else f"{training.epochs:g}",
    }


def _data_options(lengths: LengthsRequest | None) -> dict[str, str | None]:
    if lengths is None:
        return {}
    return {
        "--lengths": lengths.file,
        "--tokenizer": lengths.tokenizer,
        "--text-field": lengths.text_field,
    }


def _sweep_text(sweep: Sweep) -> str:
    return f"{_OPTIONS[sweep.key]}={','.join(map(str, sweep.values))}"


def _typed_rungs(request: SurveyRequest) -> tuple[str, ...]:
    recipe = request.recipe
    if recipe.typed or recipe.source != "command line":
        return recipe.typed
    own = request.user_training.config if request.user_training is not None else None
    rungs = [rung.config for rung in recipe.rungs if rung.config != own]  # --from says it
    # An older run's. On one GPU, rungs that differ only in how they are sharded are the same.
    return tuple(dict.fromkeys(rung_text(config, request) for config in rungs))


def rung_text(config: TrainConfig, request: SurveyRequest) -> str:
    """A rung as `--rung` reads it: only what differs from the defaults and the survey's sizes.

    A typed rung with weights in bfloat16 has the usual mixed precision of its method.
    """
    micro, names_type = request.micro_batch_size, config.weights_dtype != "bfloat16"
    plain = TrainConfig(
        autocast_dtype="none" if names_type else usual_autocast(config.method, config.objective),
        micro_batch_size=AUTO if micro is None else micro,
        sequence_length=request.sequence_length,
        effective_batch_size=request.effective_batch_size,
        world_size=request.gpus if config.sharding != "none" else 1,
    )
    return ",".join(_settings(config, plain, always=("method",)))


def own_rung_text(config: TrainConfig, own: TrainConfig) -> str:
    """A change of the rung of --from as `--rung` reads it: `yours`, and what differs from it."""
    return ",".join([YOURS, *_settings(config, own)])


def _settings(config: TrainConfig, base: TrainConfig, always: Sequence[str] = ()) -> list[str]:
    settings = []
    for field in fields(TrainConfig):
        value = getattr(config, field.name)
        if value == getattr(base, field.name) and field.name not in always:
            continue
        if isinstance(value, bool):
            text = str(value).lower()
        else:
            text = "+".join(value) if isinstance(value, tuple) else str(value)
        settings.append(f"{field.name}={text}")
    return settings
