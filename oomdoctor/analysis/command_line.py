"""The command line that asks for a request again, possibly with other options.

It holds every option that differs from its default, quoted for the shell, so it can be pasted. Only
what was to be recorded (--snapshot, --trace) is left out: that is done.
tests/cli/test_next_commands.py reads each line back and compares the request.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields

from oomdoctor.analysis.fit import USUAL_HEADROOM
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.configuration.keys import usual_autocast
from oomdoctor.records.facts.choices import AUTO
from oomdoctor.records.report.plan import PlanRequest
from oomdoctor.records.report.report import SurveyRequest
from oomdoctor.records.report.searched import SolvedKey
from oomdoctor.units import GIB, MIB

_USUAL = TrainConfig()
_USUAL_TOKENS, _USUAL_EVAL_BATCH = 10**6, 8
_USUAL_RUNG_LIMIT_S = 600.0
SOLVED_WORDS: dict[SolvedKey, str] = {
    "sequence_length": "seq-len",
    "micro_batch_size": "micro-batch",
    "lora_rank": "lora-rank",
    "completion_length": "completion-length",
    "num_generations": "generations",
    "vllm_gpu_memory_utilization": "vllm-share",
}
# What only one of the commands has; the other one's requests have a value there as well.
_OF_PROBE = frozenset(
    {
        *("--device", "--emulate", "--ranks", "--nodes", "--weights", "--eval-batch", "--seed"),
        *("--rung-timeout", "--eval", "--no-predict"),
    }
)
_OF_PLAN = frozenset({"--with", "--verify"})
_NAMED = ("built-in", "command line")  # the sources of recipes that their names tell
Options = Mapping[str, str | bool | Sequence[str] | None]
"""Options with a value, with several, or switches. None and False stand for those not needed."""


def command_line(request: SurveyRequest, changed: Mapping[str, str | None] | None = None) -> str:
    """The command line of a request; `changed` sets options, or drops them with None."""
    plan, changed = request.plan, changed or {}
    words = ["oomdoctor", "probe" if plan is None else "plan", request.model.name]
    words += _said({"--from": request.from_files})
    words += _said(_questions(plan) if plan is not None else {})
    others = _OF_PLAN if plan is None else _OF_PROBE
    words += _said({**_options(request), **changed}, others)
    words += _said({"--rung": _typed_rungs(request) if "--recipe" not in changed else ()})
    return shlex.join([*words, *_said(_switches(request), others)])


def _said(options: Options, without: Collection[str] = ()) -> list[str]:
    words: list[str] = []
    for name, value in options.items():
        if value and name not in without:
            values = [value] if isinstance(value, str | bool) else value
            words += [word for item in values for word in (name, item) if isinstance(word, str)]
    return words


def _unless(usual: object, value: object) -> str | None:
    """A value as text, if it is not the usual one."""
    return None if value is None or value == usual else str(value)


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


def _questions(plan: PlanRequest) -> Options:
    least, host, sweep = plan.min_memory_bytes, plan.host_memory_bytes, plan.sweep
    values = "" if sweep is None else ",".join(map(str, sweep.values))
    return {
        "--all-gpus": plan.all_gpus,
        "--min": plan.fewest is not None,
        "--gpu": plan.gpus,
        "--min-vram": size_text(least) if least is not None else None,
        "--sort": _unless("speed" if plan.prices is None else "cost", plan.sort),
        "--price": plan.prices.source if plan.prices is not None else None,
        "--sweep": f"{SOLVED_WORDS[sweep.key]}={values}" if sweep is not None else None,
        "--why": plan.why,
        "--solve": SOLVED_WORDS[plan.solve] if plan.solve is not None else None,
        "--interconnect": _unless("auto", plan.interconnect),
        "--host-memory": size_text(host) if host else None,
    }


def _options(request: SurveyRequest) -> dict[str, str | None]:
    """The options with a value, and None for those at their default."""
    model, recipe = request.model, request.recipe
    length: int | None = request.sequence_length
    lengths, training = request.lengths, request.training
    if lengths is not None or sweeps_length(request):
        length = lengths.packed_tokens if lengths is not None else None
    batch: int | None = request.effective_batch_size
    # A probe takes others on the CPU, and a file has its own.
    if request.plan is not None and not request.from_files and lengths is None:
        length = length if length != _USUAL.sequence_length else None
        batch = batch if batch != _USUAL.effective_batch_size else None
    usual = recipe.source == "built-in" and recipe.name == "default" and not request.from_files
    name = recipe.name if recipe.source in _NAMED else recipe.source
    fewest = request.plan.fewest if request.plan is not None else None
    epochs = training.epochs if training is not None else 1
    return {
        "--recipe": None if usual else name,
        "--revision": model.revision,
        "--source": _unless("auto", model.source),
        "--task": _unless("auto", model.task),
        "--device": _unless("auto", request.device) if request.emulate is None else None,
        "--gpus": _unless(1, request.gpus) if fewest is None else f"{fewest.low}..{fewest.high}",
        "--routing": request.routing,
        "--emulate": request.emulate,
        "--ranks": "all" if request.all_ranks else None,
        "--nodes": _unless(1, request.nodes),
        "--vram": size_text(request.vram_bytes) if request.vram_bytes is not None else None,
        "--lengths": lengths.file if lengths is not None else None,
        "--tokenizer": lengths.tokenizer if lengths is not None else None,
        "--text-field": lengths.text_field if lengths is not None else None,
        "--rows": _unless(None, training.rows if training is not None else None),
        "--epochs": f"{epochs:g}" if epochs != 1 else None,
        "--seq-len": _unless(None, length),
        "--effective-batch": _unless(None, batch),
        "--micro-batch": _unless(None, request.micro_batch_size),
        "--headroom": _unless(f"{USUAL_HEADROOM * 100:.10g}%", f"{request.headroom * 100:.10g}%"),
        "--rank-by": _unless("throughput", request.rank_by),
        "--tokens": _unless(_USUAL_TOKENS, request.tokens),
        "--weights": _unless("synthetic", request.weights),
        "--eval-batch": _unless(_USUAL_EVAL_BATCH, request.eval_batch_size),
        "--seed": _unless(0, request.seed),
        "--rung-timeout": _unless(f"{_USUAL_RUNG_LIMIT_S:g}s", f"{request.rung_limit_s:g}s"),
        "--with": ",".join(request.versions) or None,  # a probe measures what is installed
        "--python": None if request.versions else _unless(sys.executable, request.python),
    }


def _switches(request: SurveyRequest) -> Options:
    return {
        "--trust-remote-code": request.model.trust_remote_code,
        "--fresh": request.fresh,
        "--eval": request.evaluate,
        "--no-predict": not request.predict,
        "--verify": request.plan is not None and request.plan.verify,
    }


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
    return ",".join(settings_beyond(plain, config, always=("method",)))


def settings_beyond(
    base: TrainConfig, config: TrainConfig, always: Sequence[str] = ()
) -> list[str]:
    """`key=value` for each key that differs from `base`, and for those of `always`."""
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
