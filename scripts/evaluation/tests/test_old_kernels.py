"""What old code computed: the operators that each adaptation makes of a layer or of an update."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from old_code.kernels import IN_TRITON, KERNELS
from torch.utils._python_dispatch import TorchDispatchMode

from oomdoctor.analysis.speed import roofline
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.system.catalogue import find_gpu

CONFIG = TrainConfig()


class Counting(TorchDispatchMode):  # type: ignore[misc]
    """Counts operators by name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[func._schema.name.removeprefix("aten::")] += 1
        return func(*args, **(kwargs or {}))


def operators(function: Callable[[], object]) -> Counter[str]:
    with Counting() as counting:
        function()
    return counting.names


def update(name: str, dtype: torch.dtype) -> Counter[str]:
    """The operators of the second step of AdamW on two parameters, whose states are there."""
    parameters = [torch.nn.Parameter(torch.ones(4, dtype=dtype)) for _ in range(2)]
    with KERNELS[name].apply(CONFIG):
        optimizer = torch.optim.AdamW(parameters)
        for _ in range(2):
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
            counts = operators(optimizer.step)
    return counts


def test_bert_s_own_adam_updates_each_parameter_alone() -> None:
    counts = update("BertAdam", torch.float32)
    assert counts["sqrt"] == counts["addcmul_"] == 2  # one for each parameter
    assert counts["_foreach_norm"] == 1


def test_apex_copies_gradients_and_weights_between_its_types_by_lists() -> None:
    counts = update("masters of apex", torch.float16)
    assert counts["_foreach_copy_"] == 2
    assert not counts["sqrt"] and not counts["zeros_like"]


@pytest.mark.parametrize(
    ("name", "operator"),
    [("layer norm by operators", "mean"), ("norms in low precision", "native_layer_norm")],
)
def test_a_layer_norm_is_the_operators_of_its_code(name: str, operator: str) -> None:
    layer = torch.nn.LayerNorm(8)
    with KERNELS[name].apply(CONFIG), torch.no_grad():
        counts = operators(lambda: layer(torch.ones(2, 8)))
        assert torch.allclose(layer(torch.arange(8.0)).mean(), torch.zeros(()), atol=1e-6)
    assert counts[operator] == 1
    assert ("native_layer_norm" in counts) == (operator == "native_layer_norm")


def test_norms_in_low_precision_stay_in_16_bits_under_autocast() -> None:
    layer = torch.nn.LayerNorm(8)
    with KERNELS["norms in low precision"].apply(CONFIG), torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.ones(2, 8)).dtype == torch.bfloat16


def test_tf32_is_on_only_inside() -> None:
    with KERNELS["TF32"].apply(CONFIG):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == "highest"


def test_attention_in_triton_is_half_as_fast() -> None:
    gpu = find_gpu("A100-SXM4-80GB")
    assert gpu is not None
    today = roofline.attention_of("flash", gpu)
    with KERNELS[IN_TRITON].apply(CONFIG):
        old = roofline.attention_of("flash", gpu)
    assert today is not None and old is not None
    assert (old.forward, old.backward) == pytest.approx((today.forward / 1.9, today.backward / 1.9))
    assert roofline.attention_of("flash", gpu) == today
