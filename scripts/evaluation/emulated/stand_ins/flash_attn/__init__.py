"""A stand-in for flash-attn 2.7.3, which cannot be built without CUDA's compiler.

It allocates what `mha_fwd` and `mha_bwd` of csrc/flash_attn/flash_api.cpp allocate, in their order,
and computes nothing. Dropout takes no more memory, because its mask is made anew from `rng_state`.
Heads of a dimension that is no multiple of 8 and variable lengths are not there: no published row
uses them.
"""

import torch

__version__ = "2.7.3"


class _FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, with_gradient):
        keeps = with_gradient and any(x.requires_grad for x in (q, k, v))
        batch, length, heads, _ = q.shape
        out = torch.empty_like(q)
        lse = torch.empty(batch, heads, length, dtype=torch.float32, device=q.device)
        rng_state = torch.empty(2, dtype=torch.int64, device=q.device)
        if keeps:
            ctx.save_for_backward(q, k, v, out, lse, rng_state)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        q, k, v, _, _, _ = ctx.saved_tensors
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        batch, length, heads, width = q.shape
        kv_length, kv_heads = k.shape[1:3]
        rounded = -(-length // 128) * 128
        wide = -(-width // 32) * 32 if width <= 192 else 256
        softmax_d = torch.empty(batch, heads, rounded, dtype=torch.float32, device=q.device)
        dq_accum = torch.empty(batch, rounded, heads, wide, dtype=torch.float32, device=q.device)
        if kv_heads != heads:
            shape = (batch, kv_length, heads, width)
            expanded = [torch.empty(shape, dtype=q.dtype, device=q.device) for _ in range(2)]
            groups = (batch, kv_length, kv_heads, heads // kv_heads, width)
            for wide_gradient, gradient in zip(expanded, (dk, dv), strict=True):
                torch.sum(wide_gradient.reshape(groups), dim=3, out=gradient)
        del softmax_d, dq_accum
        return dq, dk, dv, None


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, **options):
    if q.size(-1) % 8:
        raise NotImplementedError("the stand-in for flash-attn has no padded heads")
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    return _FlashAttention.apply(q, k, v, torch.is_grad_enabled())


def flash_attn_varlen_func(*arguments, **options):
    raise NotImplementedError("the stand-in for flash-attn has no variable lengths")


flash_attn_with_kvcache = flash_attn_varlen_func
