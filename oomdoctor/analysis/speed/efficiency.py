"""How much of their peaks cards reach in training: one table, with its sources.

Shares are relative to the dense peaks in `data/gpus.json`, at the nominal boost clock. A GeForce
card clocks higher and may exceed 1; a card with a tight power limit stays far below. Nothing here
is fitted to the speeds that predictions are compared with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oomdoctor.records.machine import GpuFacts


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Achieved / peak; `tensor` and `float32` for large products, `attention` for fused kernels.

    `emulated_bfloat16` is a share of the float32 peak, for cards without native bfloat16.
    `measured` is False if a share was taken from a related card.
    """

    tensor: float
    float32: float
    attention: float
    bandwidth: float
    emulated_bfloat16: float = 0.0
    measured: bool = True

    @property
    def native_bfloat16(self) -> bool:
        return not self.emulated_bfloat16


# Sources, by column.
# tensor, float32, emulated bfloat16: the largest of 1024..10240 cubed in PyTorch,
#   github zzc0721/torch-performance-test-data database.md @9d82827 (about 60 cards; TFLOP/s of
#   bf16 | fp32: A100 247-266 | 18-19, H100 784-798 | 52, H100 PCIe 496 | 37, B200 1696 | 66,
#   RTX 3090 76 | 24, RTX A6000 123 | 24, RTX 4090 160-173 | 54, L40S 269 | 47, L4 71 | 15,
#   RTX 5090 222-242 | 67, RTX PRO 6000 410-418 | 77; T4 fp16 42, bf16 2.0-2.5, fp32 4.2; V100
#   fp16 89-95, bf16 10, fp32 14; RTX 2080 Ti fp16 59, bf16 7, fp32 13; P100 fp16 8.4, bf16 6.1),
#   and the achievable matmul table of github stas00/ml-engineering compute/accelerator @744d01e
#   (A100 87 %, A100 PCIe 81, H100 80, GH200 84, B200 78, B300 79, GB200 73).
#   Shares here are 2-5 % below those records, which are the best of several shapes.
# attention: forward and backward of FlashAttention-2 as PyTorch ships it. A100: up to 225 TFLOP/s
#   and 73 % forward, 63 % backward (Dao 2023, arXiv:2307.08691, sections 4.1-4.2; causal and short
#   sequences lower); H100 335 (same, section 4.1) and 370 forward (Shah et al. 2024,
#   arXiv:2407.08608, figure 5); RTX A5000 59-79 of 111 (github gpu-mode/ring-attention#10);
#   RTX 4090 151-173 forward (github ROCm/flash-attention#27); B200 259-346 (github
#   Dao-AILab/flash-attention#1589). Turing and Volta have only the memory-efficient kernel, for
#   which no figure was found.
# bandwidth: A800 PCIe 1727 of 1935 GB/s (github mli/transformers-benchmarks#4), H100 78-88 %
#   (github meta-pytorch/torchrec#4637), GB200 82 % (github pytorch/ao#4247), RTX 3090 88-94 %
#   (profile of a matrix-vector kernel, autorepl.dev experiment cexp_3683be). Chains of unfused
#   operators stay a few percent below.
_TABLE: tuple[tuple[tuple[str, ...], str, Efficiency], ...] = (
    (("6.0",), "", Efficiency(0.85, 0.88, 0.30, 0.75, emulated_bfloat16=0.60, measured=False)),
    (("6.1",), "", Efficiency(0.85, 0.85, 0.30, 0.75, emulated_bfloat16=0.45, measured=False)),
    (("7.0",), "", Efficiency(0.73, 0.87, 0.30, 0.80, emulated_bfloat16=0.63, measured=False)),
    (("7.5",), "GeForce", Efficiency(0.95, 0.90, 0.35, 0.85, emulated_bfloat16=0.52)),
    (("7.5",), "", Efficiency(0.63, 0.52, 0.30, 0.80, emulated_bfloat16=0.28, measured=False)),
    (("8.0",), "", Efficiency(0.80, 0.93, 0.52, 0.85)),
    (("8.6",), "GeForce", Efficiency(1.00, 0.68, 0.62, 0.87)),
    (("8.6",), "", Efficiency(0.77, 0.61, 0.60, 0.85)),
    (("8.9",), "GeForce", Efficiency(0.97, 0.65, 0.75, 0.87)),
    (("8.9",), "L4", Efficiency(0.56, 0.50, 0.45, 0.85)),
    (("8.9",), "", Efficiency(0.72, 0.51, 0.55, 0.85)),
    (("9.0",), "PCIe", Efficiency(0.64, 0.72, 0.35, 0.83)),
    (("9.0",), "", Efficiency(0.77, 0.77, 0.33, 0.83)),
    (("10.0", "10.3"), "", Efficiency(0.74, 0.82, 0.14, 0.82)),
    (("12.0",), "GeForce", Efficiency(1.03, 0.62, 0.60, 0.87, measured=False)),
    (("12.0",), "", Efficiency(0.80, 0.60, 0.50, 0.85, measured=False)),
)


def efficiency_of(gpu: GpuFacts) -> Efficiency | None:
    """The first row for the card's compute capability whose word is in its name."""
    words = gpu.name.split()
    for capabilities, word, efficiency in _TABLE:
        if gpu.compute_capability in capabilities and (not word or word in words):
            return efficiency
    return None
