"""All remedies by key. The rules in `diagnosis.cause_rules` refer to them by these keys."""

from __future__ import annotations

from oomdoctor.explain.remedies.activations import ACTIVATION_ROWS
from oomdoctor.explain.remedies.card import CARD_ROWS
from oomdoctor.explain.remedies.generation_and_servers import GENERATION_ROWS
from oomdoctor.explain.remedies.host_memory import HOST_MEMORY_ROWS
from oomdoctor.explain.remedies.leaks_and_evaluation import LEAK_ROWS
from oomdoctor.explain.remedies.libraries import LIBRARY_ROWS
from oomdoctor.explain.remedies.optimizer_and_gradients import OPTIMIZER_ROWS
from oomdoctor.explain.remedies.weights import WEIGHT_ROWS

_ROWS = (
    *CARD_ROWS,
    *ACTIVATION_ROWS,
    *OPTIMIZER_ROWS,
    *WEIGHT_ROWS,
    *LEAK_ROWS,
    *HOST_MEMORY_ROWS,
    *GENERATION_ROWS,
    *LIBRARY_ROWS,
)
TABLE = {row.key: row for row in _ROWS}
