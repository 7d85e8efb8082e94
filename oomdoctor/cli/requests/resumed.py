"""`probe --resume`: the stored request, with the few options that may change."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from oomdoctor.analysis.command_line import command_line
from oomdoctor.cli.options.surveys import ProbeOptions
from oomdoctor.cli.requests.dataset import training_request
from oomdoctor.cli.requests.probed import time_limit
from oomdoctor.cli.requests.reader import Reader
from oomdoctor.cli.requests.survey import model_name, option_name
from oomdoctor.errors import usage_error
from oomdoctor.records.dataset import TrainingRequest
from oomdoctor.records.report import RankBy, SurveyRequest

# These may change, because they do not affect what a rung measures ...
_FREE = frozenset({"rank_by", "tokens", "rows", "epochs", "time_limit", "rung_timeout"})
# ... and these are not part of a request. MODEL is checked against the run.
_NOT_IN_REQUEST = frozenset(
    {"model", "resume", "wait", "format_", "json_", "output_file", "verbose", "quiet"}
)


def resumed_request(
    stored: SurveyRequest, options: ProbeOptions, typed: frozenset[str]
) -> SurveyRequest:
    """The stored request, updated with the options in `typed` that may change.

    Raises:
        OomDoctorError: the run is a plan, or an option in `typed` would change what is measured
            (exit 2).
    """
    if stored.plan is not None:
        raise usage_error(
            "not_a_survey",
            "this run is a plan; only probes can be resumed",
            f"make it again: {command_line(stored)}",
        )
    reader = Reader("probe", quiet=options.quiet)
    for name in sorted(typed - _FREE - _NOT_IN_REQUEST):
        reader.fault(option_name(name), "cannot change when a run is resumed")
    model = options.ladder.model
    if model is not None and stored.model.name not in (model, model_name(model)):
        reader.fault("MODEL", f"this run is about {stored.model.name}, not {model}")
    rank_by: RankBy = reader.choice("--rank-by", options.ranking.rank_by, get_args(RankBy))
    tokens = reader.count("--tokens", options.ranking.tokens)
    time_limit_s = time_limit(reader, options)
    rung_limit_s = reader.duration("--rung-timeout", options.rung_timeout)
    training = _resumed_training(reader, stored, options, typed)
    reader.check()
    return replace(
        stored,
        rank_by=rank_by if "rank_by" in typed else stored.rank_by,
        tokens=tokens if "tokens" in typed else stored.tokens,
        time_limit_s=stored.time_limit_s if time_limit_s is None else time_limit_s,
        rung_limit_s=rung_limit_s if "rung_timeout" in typed else stored.rung_limit_s,
        training=training,
    )


def _resumed_training(
    reader: Reader, stored: SurveyRequest, options: ProbeOptions, typed: frozenset[str]
) -> TrainingRequest | None:
    """The stored rows and epochs, with those that were typed now."""
    before = stored.training
    known = stored.lengths is not None or before is not None
    now = training_request(reader, options.ladder, lengths=known)
    if now is None or not typed & {"rows", "epochs"}:
        return before
    if before is None:
        return now
    return TrainingRequest(
        rows=now.rows if "rows" in typed else before.rows,
        epochs=now.epochs if "epochs" in typed else before.epochs,
    )
