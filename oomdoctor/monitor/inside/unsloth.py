"""What Unsloth reads of weights, which have no values on the emulated GPU.

Before training it looks for tokens whose embedding is zero. There, that is every token of the data,
so it would refuse to train.
"""

from __future__ import annotations

import sys
from typing import Any

MODULE = "unsloth_zoo.tokenizer_utils"


def trust_embeddings() -> None:
    """Let the check of an imported Unsloth find that all tokens of the data are trained."""

    def fix_untrained_tokens(*_: Any, **__: Any) -> None:
        return

    found: Any = sys.modules[MODULE]
    if hasattr(found, "fix_untrained_tokens"):
        found.fix_untrained_tokens = fix_untrained_tokens
