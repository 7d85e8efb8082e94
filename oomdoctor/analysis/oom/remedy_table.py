"""All remedies by their key, which the rules in `causes` name."""

from __future__ import annotations

from oomdoctor.analysis.oom.remedy_rows_activations import ACTIVATIONS_ROWS
from oomdoctor.analysis.oom.remedy_rows_card import CARD_ROWS
from oomdoctor.analysis.oom.remedy_rows_other import OTHER_ROWS
from oomdoctor.analysis.oom.remedy_rows_states import STATES_ROWS
from oomdoctor.analysis.oom.remedy_rows_steps import STEPS_ROWS
from oomdoctor.analysis.oom.remedy_rows_weights import WEIGHTS_ROWS

_ROWS = (*CARD_ROWS, *ACTIVATIONS_ROWS, *STATES_ROWS, *WEIGHTS_ROWS, *STEPS_ROWS, *OTHER_ROWS)
TABLE = {row.key: row for row in _ROWS}
