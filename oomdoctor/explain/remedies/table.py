"""All remedies by their key, which the rules in `causes` name."""

from __future__ import annotations

from oomdoctor.explain.remedies.activations import ACTIVATIONS_ROWS
from oomdoctor.explain.remedies.card import CARD_ROWS
from oomdoctor.explain.remedies.host_memory import OTHER_ROWS
from oomdoctor.explain.remedies.leaks_and_evaluation import STEPS_ROWS
from oomdoctor.explain.remedies.optimizer_and_gradients import STATES_ROWS
from oomdoctor.explain.remedies.weights import WEIGHTS_ROWS

_ROWS = (*CARD_ROWS, *ACTIVATIONS_ROWS, *STATES_ROWS, *WEIGHTS_ROWS, *STEPS_ROWS, *OTHER_ROWS)
TABLE = {row.key: row for row in _ROWS}
