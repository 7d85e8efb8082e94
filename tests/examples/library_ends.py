"""What the oldest supported libraries cannot do: marks of tests, and what the code then says.

A test that is refused in these words is skipped, but only where the library is that old.
"""

from __future__ import annotations

import re
from importlib.metadata import version
from importlib.util import find_spec

import pytest


def _installed(library: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version(library).split("+")[0].split(".")[:2])


# What the code says of a library before a version.
_REFUSED = (
    ("transformers", (4, 53), "cannot use bitsandbytes on cpu"),
    ("transformers", (4, 53), "this transformers lets documents attend to each other"),
    ("transformers", (4, 53), "flex_attention needs newer releases of transformers"),
    ("transformers", (4, 55), "Unrecognized model identifier: gpt_oss"),
    ("accelerate", (1, 4), r"cannot convert linear layers to fp8 \(No module named"),
    ("bitsandbytes", (0, 50), "cannot create the optimizer .*need to be on the same GPU"),
    ("accelerate", (1, 6), "the Trainer rejects this configuration: .*no available devices"),
)
QUANTIZES_ON_CPU = _installed("transformers") >= (4, 53)
needs_quantized_cpu = pytest.mark.skipif(
    not QUANTIZES_ON_CPU,
    reason="transformers before 4.53 quantizes on the CPU only with Intel's extension",
)
HAS_TRL = find_spec("trl") is not None
needs_trl = pytest.mark.skipif(not HAS_TRL, reason="needs TRL, and that a newer transformers")
needs_peft_that_refuses = pytest.mark.skipif(
    _installed("peft") < (0, 16), reason="peft before 0.16 puts adapters on all layers of Mamba"
)
needs_router_of_its_own = pytest.mark.skipif(
    _installed("transformers") < (5, 0),
    reason="the router of Phi-3.5-MoE is a plain linear layer before transformers 5",
)
needs_fsdp_on_cpu = pytest.mark.skipif(
    _installed("accelerate") < (1, 6),
    reason="accelerate before 1.6 has no FSDP 2, and sets up FSDP 1 only where there is a GPU",
)


def why_refused(error: BaseException) -> str | None:
    """Why a test cannot pass with a library of this age; None if that is not the reason."""
    for library, since, words in _REFUSED:
        if re.search(words, str(error), re.DOTALL) and _installed(library) < since:
            return f"{library} {version(library)}: {str(error)[:200]}"
    return None
