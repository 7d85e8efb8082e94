"""The formula view of a rung: bytes a parameter, beside what the simulation found.

Weights, gradients and optimizer states are bytes a parameter; activations, logits and temporary
tensors are not, so a formula has no term for them. The rule of thumb of 16 bytes a parameter is
that of full fine-tuning with AdamW in float32: 4 for the weight, 4 for the gradient, 8 for the two
states (Rajbhandari et al., 2020, arXiv:1910.02054, section 3.1, counts the same 16 otherwise).
"""

from __future__ import annotations

from oomdoctor.analysis.memory.bounds import DTYPE_BYTES, state_bytes, weights_bytes
from oomdoctor.records.config import TrainConfig
from oomdoctor.records.measurement import Measurement
from oomdoctor.records.model import ParameterCounts
from oomdoctor.records.plan import FormulaTerm, FormulaView
from oomdoctor.records.simulation import PhasePeak
from oomdoctor.units import format_bytes, format_count

RULE_BYTES = 16  # a parameter
_ADAPTER_BYTES = 4  # peft keeps trainable adapters in float32 (autocast_adapter_dtype)


def formula_view(
    config: TrainConfig,
    counts: ParameterCounts,
    measured: Measurement,
    phases: tuple[PhasePeak, ...],
) -> FormulaView:
    """Each term by formula and as it was at the highest moment, and where 16 bytes are wrong."""
    peak = max(phases, key=lambda phase: phase.peak_allocated_bytes)
    simulated = peak.by_category
    trainable = measured.trainable_parameters
    weights = weights_bytes(config, counts)
    terms = [
        FormulaTerm(
            "weights", weights / counts.total, counts.total, weights, simulated.get("weights")
        )
    ]
    if config.method != "full":
        terms.append(_term("adapters", _ADAPTER_BYTES, trainable, None))
    width = DTYPE_BYTES[config.weights_dtype] if config.method == "full" else _ADAPTER_BYTES
    terms.append(_term("gradients", width, trainable, simulated.get("gradients")))
    states = _state_width(config, counts)
    if states is None:
        terms.append(
            FormulaTerm("optimizer states", None, trainable, None, simulated.get("optimizer"))
        )
    else:
        terms.append(_term("optimizer states", states, trainable, simulated.get("optimizer")))
    for name in ("activations", "logits", "inputs", "temporary"):
        terms.append(FormulaTerm(name, None, None, None, simulated.get(name)))
    total = sum(term.formula_bytes or 0 for term in terms)
    rule = RULE_BYTES * counts.total
    error = rule / measured.deciding_peak_bytes() - 1
    return FormulaView(
        terms=tuple(terms),
        formula_bytes=total,
        rule_bytes=rule,
        rule_error=error,
        remarks=tuple(_remarks(config, counts, measured, peak, total)),
    )


def _term(name: str, each: float, count: int, simulated: int | None) -> FormulaTerm:
    return FormulaTerm(name, each, count, round(each * count), simulated)


def _state_width(config: TrainConfig, counts: ParameterCounts) -> float | None:
    """Bytes of optimizer state a trainable parameter on the device; None where not known."""
    if config.optimizer in ("adamw_torch", "adamw_torch_fused"):
        each = DTYPE_BYTES[config.weights_dtype] if config.method == "full" else _ADAPTER_BYTES
        return 2.0 * each
    known = state_bytes(config, counts)
    return None if known is None else known / counts.total


def _remarks(
    config: TrainConfig,
    counts: ParameterCounts,
    measured: Measurement,
    peak: PhasePeak,
    formula_bytes: int,
) -> list[str]:
    """Where the rule of thumb and the formula are wrong for this rung, most bytes first."""
    found = []
    trainable = measured.trainable_parameters
    if trainable < counts.total:
        found.append(
            f"16 bytes count gradients and states for all parameters; {format_count(trainable)} "
            f"of {format_count(measured.parameters)} are trained"
        )
    elif config.weights_dtype != "float32":
        found.append(
            f"16 bytes are those of float32; here weights, gradients and states follow "
            f"{config.weights_dtype}"
        )
    step, phase = peak.step, peak.phase
    grown = {name: peak.by_category.get(name, 0) for name in ("activations", "logits", "temporary")}
    unknown = sum(grown.values())
    largest = max(grown, key=lambda name: grown[name])
    if unknown:
        found.append(
            f"no formula of parameters knows of {format_bytes(unknown)} that grow with the batch "
            f"or live for a moment, {largest} most of all ({format_bytes(grown[largest])})"
        )
    when = "the first step" if step == "first" else "a later step"
    found.append(
        f"the peak is one moment, in {phase} of {when}: what is not alive then does not count"
    )
    return found
