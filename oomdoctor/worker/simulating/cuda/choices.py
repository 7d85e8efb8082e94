"""What CUDA chooses for one card during a recording, and for which other cards it does the same.

Cards differ in their attention kernels, in the memory that some kernels take while they run, and in
the size of the cuBLAS workspaces: blocks of the caching allocator that matrix products need. Cards
that differ only in their workspaces share a recording. The rules of `scaled_dot_product_attention`
follow sdp_utils.cpp and sdp_utils_cpp.h of torch 2.6-2.13.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from oomdoctor.analysis.simulator.card import WORKSPACES, Card, workspace_bytes
from oomdoctor.package_data import data_of
from oomdoctor.system.environment import variable
from oomdoctor.units import MIB
from oomdoctor.worker.simulating.cuda import kernel_rules as kernels
from oomdoctor.worker.simulating.cuda.attention import Backend, Call
from oomdoctor.worker.simulating.cuda.flex import kept_of
from oomdoctor.worker.simulating.cuda.host_numbers import HostNumbers
from oomdoctor.worker.tracing.calls import OperatorCall
from oomdoctor.worker.tracing.steps import Lasting, OnHost, Passing, Step
from oomdoctor.worker.training.inspection import torch_release

_CUBLAS_OPERATORS: frozenset[str] = frozenset(data_of("operators.toml")["cublas"])
_LT_BYTES = MIB  # CUBLASLT_WORKSPACE_SIZE by default
_LT_WORKSPACES = ("cublasLt", "cublasLt of the autograd thread")


class Choices:
    """Chooses for `card`, and keeps in `alike` the cards that would get the same answers.

    Invariant: `card` is in `alike`. `numbers` knows which ones are on the host.
    """

    def __init__(self, cards: Iterable[Card]) -> None:
        self.cards = tuple(dict.fromkeys(cards))
        self.card = self.cards[0]
        self.alike = set(self.cards)
        self.numbers = HostNumbers()

    def begin(self, card: Card) -> None:
        """Begin a recording for this card."""
        self.card = card
        self.alike = set(self.cards)

    def attention(self, call: Call) -> Backend:
        """The attention kernel of a call."""
        chosen = choose_backend(call, self.card)
        self.alike = {card for card in self.alike if choose_backend(call, card) == chosen}
        return chosen

    def steps(self, call: OperatorCall) -> tuple[Step, ...]:
        """What a kernel does with memory while it runs, see `kernels`."""
        if self.numbers.makes_one(call):
            return (OnHost(0),)
        steps = kernels.steps_of(call, self.card)
        if kernels.differs_by_card(call.func):
            self.alike = {card for card in self.alike if kernels.steps_of(call, card) == steps}
        return steps

    def workspaces(self, call: OperatorCall) -> tuple[Lasting | Passing, ...]:
        """The cuBLAS workspaces that an operator needs, and what a compiler keeps of its inputs.

        Their names are those of all cards.
        """
        return (*workspaces_of(call, self.card), *kept_of(call))


_LITTLE_SHARED_MEMORY = ((8, 6), (8, 7), (8, 9), (12, 0), (12, 1))


def choose_backend(call: Call, card: Card) -> Backend:
    """sdp_utils.cpp `select_sdp_backend`: the first backend by priority that accepts the call.

    The switches of `torch.backends.cuda` apply, as on CUDA.
    """
    from torch.backends import cuda

    if _fits_any_fused_kernel(call):
        # By default cuDNN comes after math, so it is either first or never reached.
        if cuda.cudnn_sdp_enabled() and _prefers_cudnn(card) and _fits_cudnn(call):
            return "cudnn"
        if cuda.flash_sdp_enabled() and _fits_flash(call, card):
            return "flash"
        if cuda.mem_efficient_sdp_enabled() and _fits_efficient(call, card):
            return "efficient"
    return "math"


def _fits_any_fused_kernel(call: Call) -> bool:
    """Constraints that all fused kernels share: four dimensions, dense rows, equal heads."""
    query, key, value = call.query, call.key, call.value
    if not query.dim() == key.dim() == value.dim() == 4 or 0 in (query.shape[2], key.shape[2]):
        return False
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        return False
    same_heads = query.shape[1] == key.shape[1] == value.shape[1]
    grouped = call.grouped and query.shape[1] % key.shape[1] == 0
    if not (same_heads or (grouped and key.shape[1] == value.shape[1])):
        return False
    if query.dtype != key.dtype or query.dtype != value.dtype:
        return False
    tensors = [tensor for tensor in (query, key, value, call.mask) if tensor is not None]
    return all(tensor.stride(-1) == 1 for tensor in tensors)


def _fits_flash(call: Call, card: Card) -> bool:
    size = call.query.shape[-1]
    if call.mask is not None or card < (8, 0) or not _is_half(call.query):
        return False
    if not size == call.key.shape[-1] == call.value.shape[-1] or size > 256:
        return False
    if call.is_causal and call.query.shape[2] != call.key.shape[2]:
        return False
    if not call.needs_grad or card not in _LITTLE_SHARED_MEMORY:
        return True
    return size <= 192 or (call.dropout == 0.0 and size > 224)


def _fits_efficient(call: Call, card: Card) -> bool:
    """It has no grouped heads (up to torch 2.13) and no bfloat16 below sm80."""
    query, key, value = call.query, call.key, call.value
    if query.shape[1] != key.shape[1]:
        return False
    modern = card >= (8, 0)
    dtypes = {torch.float16, torch.float32} | ({torch.bfloat16} if modern else set())
    if query.dtype not in dtypes:
        return False
    # `minimum_gemm_alignment`: 128 bits if tensor cores are used.
    tensor_cores = modern or (card >= (7, 0) and _is_half(query))
    alignment = (8 if _is_half(query) else 4) if tensor_cores else 1
    size = query.shape[-1]
    aligned = size % alignment == 0 and value.shape[-1] % alignment == 0
    return aligned and bool(size == key.shape[-1])


def _fits_cudnn(call: Call) -> bool:
    """`can_use_cudnn_attention` of cuDNN 9.10 and later, for the cards that prefer it."""
    sizes = call.query.shape[-1], call.value.shape[-1]
    fits = max(sizes) <= 128 or sizes == (192, 128)
    if not _is_half(call.query) or not fits:
        return False
    if call.mask is not None and (call.mask.requires_grad or call.mask.dim() == 3):
        return False
    if call.key.shape[2] == 1 or call.query.shape[-1] != call.key.shape[-1]:
        return False
    return sizes[0] % 8 == sizes[1] % 8 == 0 and call.dropout * 16 == int(call.dropout * 16)


def _prefers_cudnn(card: Card) -> bool:
    """sdp_utils.cpp `check_prefer_cudnn_attention`, with the cuDNN that the wheels ship.

    torch 2.9 puts cuDNN first on sm90 and sm100 (pull 162073). torch 2.10 requires cuDNN above 9.15
    but ships 9.10. From 2.11 on, the CUDA 13 wheels ship a later one (transformers pull 48163).
    """
    release = torch_release()
    return card in ((9, 0), (10, 0), (10, 3)) and release >= (2, 9) and release != (2, 10)


def _is_half(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_floating_point() and tensor.element_size() == 2)


def workspaces_of(call: OperatorCall, card: Card) -> tuple[Lasting | Passing, ...]:
    """The workspaces that an operator needs; none if it does not use cuBLAS.

    Before torch 2.15, the first operator that needs a workspace allocates it, and the process keeps
    it. There are two, because workspaces are kept by (handle, stream), each thread has its own
    handle, and on CUDA the autograd engine has its own thread (CublasHandlePool.cpp,
    `setWorkspaceForHandle`). Recomputation under activation checkpointing also runs in that thread.
    From torch 2.15 on, every call takes one and frees it (pull 194311), unless
    TORCH_CUBLAS_WORKSPACE_CACHE is set.

    With a bias vector, a product uses cuBLASLt (CUDABlas.cpp `gemm_and_bias`). It has its own
    workspace: up to 2.8 for each call, up to 2.10 for each thread, and from 2.15 on instead of
    that of cuBLAS. In between, the two libraries share one (`TORCH_CUBLASLT_UNIFIED_WORKSPACE`).
    """
    schema = getattr(call.func, "_schema", None)
    if schema is None or schema.name not in _CUBLAS_OPERATORS:
        return ()
    release = torch_release()
    with_bias = schema.name == "aten::addmm" and call.tensor("self").dim() == 1
    size = workspace_bytes(card, release, workspace_setting())
    # As isCUDABlasWorkspaceCachingEnabled reads it: whether they are kept where torch would not.
    asked = (variable("TORCH_CUBLAS_WORKSPACE_CACHE") or "").lower() in ("1", "true", "t", "y")
    if release >= (2, 15) and not asked:
        if with_bias:
            return (Passing(_LT_WORKSPACES[0], _LT_BYTES),)
        return (Passing(WORKSPACES[0], size),)
    thread = torch._C._current_graph_task_id() != -1
    kept = Lasting(WORKSPACES[thread], size)
    if not with_bias or release >= (2, 11):
        return (kept,)
    kind = Passing if release < (2, 9) else Lasting
    return (kept, kind(_LT_WORKSPACES[thread], _LT_BYTES))


def workspace_setting() -> str:
    """The value of CUBLAS_WORKSPACE_CONFIG; empty if it is not set."""
    return variable("CUBLAS_WORKSPACE_CONFIG") or ""
