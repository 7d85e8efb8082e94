"""The formula view of a rung: bytes per parameter, next to what the simulation found.

Weights, gradients and optimizer states scale with the parameters. Activations, logits and temporary
tensors do not, so the formula has no term for them. The rule of 16 bytes per parameter holds for
full fine-tuning with AdamW in float32: 4 for the weight, 4 for the gradient, 8 for the two states.
(Rajbhandari et al., 2020, arXiv:1910.02054, section 3.1, arrives at the same 16 differently.)
"""

from __future__ import annotations

from oomdoctor.analysis.memory.closed_form import state_width, trained_bytes_of, weights_bytes
from oomdoctor.records.configuration.adapters import saved_dtype
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.facts.categories import ACTIVATIONS, INPUTS, LOGITS, TEMPORARY
from oomdoctor.records.facts.dtypes import dtype_bytes
from oomdoctor.records.job.measurement import Measurement
from oomdoctor.records.job.model import ParameterCounts
from oomdoctor.records.job.simulation import PhasePeak
from oomdoctor.records.report.plan import FormulaTerm, FormulaView
from oomdoctor.units import format_bytes, format_count

RULE_BYTES = 16  # per parameter


def formula_view(
    config: TrainConfig,
    counts: ParameterCounts,
    measured: Measurement,
    phases: tuple[PhasePeak, ...],
) -> FormulaView:
    """Each term by formula and at the simulated peak, and where the rule of 16 bytes is wrong."""
    peak = max(phases, key=lambda phase: phase.peak_allocated_bytes)
    simulated = peak.by_category
    trainable = measured.trainable_parameters
    weights = weights_bytes(config, counts)
    each, held = weights / counts.total, simulated.get("weights")
    terms = [FormulaTerm("weights", each, counts.total, weights, held)]
    width: int | None = trained_bytes_of(config)
    if config.modules_to_save and width != dtype_bytes(saved_dtype(config)):
        width = None  # modules that are trained whole are in another type than the adapters
    if config.method != "full":
        terms.append(_term("adapters", width, trainable, None))
    terms.append(_term("gradients", width, trainable, simulated.get("gradients")))
    states = None
    if width is not None:
        states = state_width(config.optimizer, width, offloaded=config.offload == "optimizer")
    terms.append(_term("optimizer states", states, trainable, simulated.get("optimizer")))
    for name in (ACTIVATIONS, LOGITS, INPUTS, TEMPORARY):
        terms.append(FormulaTerm(name, None, None, None, simulated.get(name)))
    rule = RULE_BYTES * counts.total
    return FormulaView(
        terms=tuple(terms),
        formula_bytes=sum(term.formula_bytes or 0 for term in terms),
        rule_bytes=rule,
        rule_error=rule / measured.deciding_peak_bytes() - 1,
        remarks=tuple(_remarks(config, counts, measured, peak)),
    )


def _term(name: str, each: float | None, count: int, simulated: int | None) -> FormulaTerm:
    size = None if each is None else round(each * count)
    return FormulaTerm(name, each, count, size, simulated)


def _remarks(
    config: TrainConfig, counts: ParameterCounts, measured: Measurement, peak: PhasePeak
) -> list[str]:
    """Where the rule and the formula are wrong for this rung."""
    remarks = []
    trainable = measured.trainable_parameters
    if trainable < counts.total:
        remarks.append(
            f"the rule counts gradients and states for all parameters; only "
            f"{format_count(trainable)} of {format_count(measured.parameters)} are trained"
        )
    elif config.weights_dtype != "float32":
        remarks.append(
            f"the rule assumes float32; here weights, gradients and states are in "
            f"{config.weights_dtype}"
        )
    grown = {name: peak.by_category.get(name, 0) for name in (ACTIVATIONS, LOGITS, TEMPORARY)}
    unseen = sum(grown.values())
    largest = max(grown, key=grown.__getitem__)
    if unseen:
        remarks.append(
            f"{format_bytes(unseen)} grows with the batch or is temporary, and is invisible to "
            f"per-parameter formulas; most of it is {largest} ({format_bytes(grown[largest])})"
        )
    when = "the first step" if peak.step == "first" else "a later step"
    remarks.append(
        f"the peak is a single moment, in {peak.phase} of {when}; only what is alive then counts"
    )
    return remarks
