"""What a survey and a plan have both found out: the request as it became, the model, its data."""

from __future__ import annotations

from collections.abc import Iterable

from oomdoctor.records.dataset import CountedRows
from oomdoctor.records.model import ModelSpec
from oomdoctor.records.report import RungFile, SurveyRequest, Warn
from oomdoctor.records.result import Inspection
from oomdoctor.records.user_training import YourRung
from oomdoctor.runs.dataset import at_rows


class Ledger:
    """A run in progress; only the methods here and of its kinds change it.

    Invariant: `request` and `rungs` are the requested ones, with sequence lengths adapted to the
    data file and to the positions of the model. What is not known yet is None or empty.
    """

    def __init__(
        self, request: SurveyRequest, spec: ModelSpec, warnings: Iterable[Warn] = ()
    ) -> None:
        self.request, self.rungs = request, request.recipe.rungs
        self.spec, self.warnings = spec, tuple(warnings)
        self.inspection: Inspection | None = None
        self.counted: CountedRows | None = None
        self.files: tuple[RungFile, ...] = ()
        self.yours: YourRung | None = None

    def take_inspection(self, inspection: Inspection) -> None:
        """Take what the worker says about the model and the machine."""
        self.inspection = inspection

    def take_rows(self, counted: CountedRows) -> None:
        """Take the counted rows: every rung is now about the longest one, or about packed ones."""
        self.counted = counted
        self.request = at_rows(self.request, counted)
        self.rungs = self.request.recipe.rungs

    def warn(self, warnings: Iterable[Warn]) -> None:
        """Add warnings."""
        self.warnings = (*self.warnings, *warnings)
