"""Count the rows of a data file for a survey or a plan, before any rung is tried.

A batch is padded to its longest row, so the rungs then get the length of the longest row. If rows
are packed, they get the length that rows are packed to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from oomdoctor.analysis.dataset_verdict import best_of, verdict
from oomdoctor.commands.events import Listener, SurveyEvent
from oomdoctor.errors import OomDoctorError, machine_error, model_error, usage_error
from oomdoctor.records.configuration.config import Rung
from oomdoctor.records.job.dataset import CountedRows, LengthsAnswer, LengthShape
from oomdoctor.records.job.model import ON_SOUND, WITHOUT_LENGTH, ModelSpec
from oomdoctor.records.job.result import Attempt, ProbeJob, ProbeResult, Reply
from oomdoctor.records.report.report import SurveyRequest


def count_rows(
    request: SurveyRequest,
    spec: ModelSpec,
    launched: Callable[[ProbeJob, Callable[[str], None]], tuple[Attempt, Reply | None]],
    on_event: Listener,
) -> CountedRows | None:
    """Count the request's data file; None if it has none. `launched` runs a job to its end.

    Raises:
        OomDoctorError: no tokenizer was found (exit 4), the file cannot be read (exit 2), or the
            worker failed (exit 5).
    """
    if request.lengths is None:
        return None
    file = request.lengths.file

    def tell(phase: str | None = None) -> None:
        on_event(SurveyEvent("counting", phase=phase, message=file))

    job = _job(request, spec)
    tell()
    attempt, reply = launched(job, tell)
    if reply is not None and reply.lengths is not None:
        return reply.lengths
    raise _error(attempt, spec)


def measured_answer(
    counted: CountedRows | None, results: tuple[ProbeResult, ...], request: SurveyRequest
) -> LengthsAnswer | None:
    """The distribution with the verdict of a survey; None without a data file."""
    if counted is None:
        return None
    assert request.lengths is not None
    lengths, shape = counted.distribution, request.lengths.decides()
    best = best_of(results, request.rank_by)
    sentences = verdict(lengths, LengthShape(shape, request.sequence_length), best)
    return LengthsAnswer(lengths, shapes=(), lines=(), limits=(), verdict=sentences)


def at_rows(request: SurveyRequest, counted: CountedRows) -> SurveyRequest:
    """The request with every rung at the length of its rows: of the longest, or of packed ones."""
    assert request.lengths is not None
    tokens = request.lengths.packed_tokens or counted.distribution.longest.tokens
    rungs = [at_length(rung, tokens) for rung in request.recipe.rungs]
    unique = {rung.config.key(): rung for rung in reversed(rungs)}  # two rungs may become one
    recipe = replace(request.recipe, rungs=tuple(reversed(unique.values())))
    return replace(request, sequence_length=tokens, recipe=recipe)


def at_length(rung: Rung, tokens: int) -> Rung:
    """The rung at that row length."""
    return replace(rung, config=replace(rung.config, sequence_length=tokens))


def other_shapes(rungs: Sequence[Rung], shapes: Sequence[LengthShape]) -> Iterator[Rung]:
    """The rungs at every other length of the shapes, with the length in the label."""
    own = {rung.config.sequence_length for rung in rungs}
    for tokens in dict.fromkeys(shape.tokens for shape in shapes):
        if tokens not in own:
            for rung in rungs:
                yield replace(at_length(rung, tokens), label=f"{rung.label} at {tokens:,} tokens")


def _job(request: SurveyRequest, spec: ModelSpec) -> ProbeJob:
    if spec.task in WITHOUT_LENGTH:
        takes = "sound" if spec.task in ON_SOUND else "images"
        why = f"--lengths: {spec.id} takes {takes}, not tokens"
        raise usage_error("no_tokens", why, "drop --lengths")
    return ProbeJob(
        mode="lengths",
        label="lengths",
        model=spec,
        config=request.recipe.rungs[0].config,
        device_type="cpu",  # counting needs no device
        lengths=request.lengths,
    )


def _error(attempt: Attempt, spec: ModelSpec) -> OomDoctorError:
    failure = attempt.failure
    code = failure.code if failure is not None else attempt.outcome
    reason = failure.message if failure is not None else attempt.reason or "no reason given"
    if code == "TokenizerError":
        return model_error(
            "no_tokenizer",
            f"no tokenizer for {spec.id} on this machine or on the hub: {reason}",
            "pass one with --tokenizer FOLDER_OR_ID, or count roughly with --tokenizer bytes/4",
        )
    if code == "DataFileError":
        return usage_error("bad_data_file", f"--lengths: {reason}")
    if code == "NoRowsError":
        return usage_error(
            "no_rows",
            f"--lengths: {reason}",
            "pass the field that holds the text with --text-field",
        )
    return machine_error("worker_failed", f"the worker could not count the rows: {reason}")
