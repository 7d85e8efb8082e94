"""`--gpus`: on how many GPUs a rung trains, and what follows for its recipe and its batch."""

from __future__ import annotations

from oomdoctor.analysis.command_line import command_line
from oomdoctor.cli.options.surveys import LadderOptions
from oomdoctor.cli.requests.reader import Reader
from oomdoctor.cli.streams.output import say
from oomdoctor.errors import usage_error
from oomdoctor.records.config import Rung
from oomdoctor.records.planned.searched import GpuRange
from oomdoctor.records.report import SurveyRequest
from oomdoctor.records.rung.faults import MOST_GPUS

_SEVERAL = 8  # to show in hints: the GPUs of a usual machine


def read_gpus(reader: Reader, options: LadderOptions) -> GpuRange:
    """The range of `--gpus A..B`; one number is a range of one."""
    if options.gpus is None:
        return GpuRange(1, 1)
    parts = options.gpus.split("..")
    if len(parts) > 2:
        reader.fault("--gpus", f"{options.gpus!r} is neither a number nor a range such as 1..64")
        return GpuRange(1, 1)
    low, *rest = (reader.integer("--gpus", part, 1, MOST_GPUS) for part in parts)
    high = rest[0] if rest else low
    if low > high:
        reader.fault("--gpus", f"{options.gpus!r} is empty; write the smaller number first")
    return GpuRange(min(low, high), high)


def effective_batch(
    reader: Reader, options: LadderOptions, usual: int, span: GpuRange, micro: int | None
) -> int:
    """The effective batch size: as typed, or the smallest usual one that the GPUs share equally.

    A range of GPUs takes any size, which is rounded up for each number of GPUs.
    """
    gpus = span.high if span.low == span.high else 1
    whole = gpus * (micro or 1)
    if options.effective_batch is None:
        effective = usual if gpus == 1 else -(-usual // whole) * whole
    else:
        effective = reader.sized("--effective-batch", options.effective_batch)
    if effective % gpus:
        below, above = effective // gpus * gpus, -(-effective // gpus) * gpus
        near = f"{below} or {above}" if below else str(above)
        reader.fault(
            "--effective-batch", f"{effective} is not a multiple of the {gpus} GPUs; use {near}"
        )
    elif micro is not None and effective % whole:
        shared = f" on each of {gpus} GPUs" if gpus > 1 else ""
        reader.fault(
            "--micro-batch", f"{micro} does not divide the effective batch size {effective}{shared}"
        )
    return effective


def ladder_name(options: LadderOptions, gpus: int, *, quiet: bool) -> str:
    """The recipe: the one that was asked for, else the one for one GPU or for several."""
    if options.recipe is not None:
        return options.recipe
    if gpus == 1:
        return "default"
    if not quiet:
        say("note: with --gpus the recipe is sharded; --recipe names another")
    return "sharded"


def check_sharded(request: SurveyRequest) -> None:
    """Check that rungs for several GPUs have them.

    Raises:
        OomDoctorError: --gpus is missing (exit 2).
    """
    fewest = request.plan.fewest if request.plan is not None else None
    rungs = request.recipe.rungs
    if request.gpus > 1 or fewest is not None or all(map(_has_its_gpus, rungs)):
        return
    name = request.recipe.name
    what = "the rung trains" if name == "none" else f"the recipe {name} trains"
    raise usage_error(
        "needs_gpus",
        f"{what} on several GPUs, and --gpus is missing",
        command_line(request, {"--gpus": str(_SEVERAL)}),
    )


def _has_its_gpus(rung: Rung) -> bool:
    return rung.config.sharding == "none" or rung.config.world_size > 1
