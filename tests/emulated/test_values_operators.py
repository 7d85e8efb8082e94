"""Integer operators on the emulated GPU give what they give on the CPU.

One expression a line; `a` and `b` are matrices of integers. All run in one process.
"""

from __future__ import annotations

from emulated_bench import Bench

EXPRESSIONS = """
a + b
a - b
a * b
a // b
a % b
-a
a.abs()
a & b
a | b
a ^ b
~a
b << 2
a >> 1
a == b
a != b
a < b
a <= b
a > b
a >= 3
torch.logical_and(a, b)
torch.logical_not(a)
a.sum()
a.sum(1)
b.prod(1)
a.cumsum(1)
b.cumprod(0)
a.cummax(1).values
a.max()
a.max(1)
a.min(1).values
a.amax(0)
a.argmax(1)
a.argmin()
(a > -9).all()
(a > 8).any()
(a > 5).any(1)
a.sort(1).values
a.argsort(dim=1, stable=True)
a.topk(3).values
a.kthvalue(2).values
a.median()
a.mode(1).values
a.unique()
a.unique(return_inverse=True, return_counts=True)
a.unique(dim=0)
a.flatten().unique_consecutive(return_counts=True)
a.nonzero()
(a > 2).nonzero(as_tuple=True)
a.count_nonzero()
torch.where(a > 0, a, b)
torch.where(a > 0)
a.masked_select(a > 0)
a.masked_fill(a > 0, 7)
a[a > 2]
(lambda x: (x.__setitem__(x > 2, 0), x)[1])(a.clone())
(lambda x: (x.__setitem__(x > 2, x[x > 2] * 2), x)[1])(a.clone())
a[b[0] % 6]
(lambda x: (x.__setitem__(0, 9), x)[1])(a.clone())
(lambda x: (x.__setitem__((slice(None), 3), 9), x)[1])(a.clone())
a.index_select(1, b[0])
a.gather(1, b)
a.scatter(1, b, b)
a.scatter_add(1, b, b)
torch.zeros_like(a).scatter_(1, b, 1)
a.index_add(0, torch.tensor([0, 2, 2], device=a.device), b[:3])
a.take(b)
a.clone().index_put_((b[0] % 6, b[1]), b[2])
a.clone().index_put_((b[0] % 6, b[1]), b[2], accumulate=True)
torch.cat([a, b], 1)
torch.stack([a, b])
a.repeat(2, 1)
a.repeat_interleave(2, 0)
torch.repeat_interleave(torch.arange(8, device=a.device), b[0])
a.flip(1)
a.roll(2, 1)
a.tril()
a.triu(1)
a.diff()
torch.nn.functional.one_hot(b, 8)
torch.nn.functional.pad(a, (1, 2), value=-100)
torch.arange(3, 30, 4, device=a.device)
torch.full((3, 3), 5, device=a.device)
torch.eye(3, dtype=torch.long, device=a.device)
torch.tril_indices(3, 3, device=a.device)
a.clamp(-1, 3)
a.sign()
torch.maximum(a, b)
b.flatten().bincount(minlength=9)
torch.searchsorted(torch.arange(0, 20, 3, device=a.device), b)
torch.bucketize(b, torch.arange(0, 20, 3, device=a.device))
torch.isin(a, b[0, :2])
a.bool()
a.int()
a.float()
(a.float() * 1.5).long()
a / b
a.float().mean()
a.t().contiguous()
a.view(-1)[5:20]
a[:, ::2].clone()
a[:1].expand(4, 8).contiguous()
torch.outer(a[0], b[0])
(a[:, None] == a[None]).sum(-1)
a.clone().add_(b)
a.clone().masked_fill_(b > 3, 0)
a.clone().fill_(3)
torch.empty_like(a).copy_(b)
torch.empty_like(a).copy_(b.cpu())
(lambda x: (x[2].copy_(b[1]), x)[1])(a.clone())
b.float().histc(5, 0, 8)
torch.nn.functional.pad(b[0].cumsum(0), (1, 0))
a.masked_scatter(a > 0, b)
torch.tensor(torch.equal(a, a.clone()))
torch.isnan(a.float()).any()
torch.combinations(a[0, :4])
torch._foreach_add([a, b], 3)
a.split([2, 4])
a.unbind(0)
torch.meshgrid(a[0], b[0], indexing="ij")
(a > 0).logical_xor_(b > 3)
a.float().lerp_(b.float(), 0.5)
a.addcmul(a, b)
torch.einsum("ij,ij->i", a.float(), b.float())
a.float() @ b.float().t()
a.narrow_copy(1, 1, 3)
a[0].unfold(0, 3, 1)
a.int().cumsum(0, dtype=torch.int32)
b.to(torch.uint8).sum()
a * torch.tensor(3)
a.eq(torch.tensor(3))
(a > 0).sum(-1)
a[[1, 0, 3]]
a.index_fill(0, torch.tensor([1, 3], device=a.device), -7)
a.clone().put_(b, b)
torch.nonzero_static(a > 2, size=10)
(a > 0).unique(return_counts=True)
(a > -99).unique()
a[:0].sum()
(a > 99).nonzero()
a.clone().clamp_max_(2)
b.bitwise_left_shift(b % 3)
torch.gcd(a, b)
torch.vmap(lambda x, y: (x * y).sum())(a, b)
a.float().floor_divide(b.float())
(a.float() / 4).exp()
torch.outer(b[0].float(), 1 / 10000 ** (torch.arange(0, 8, 2, device=a.device).float() / 8)).cos()
torch.sort(a, dim=1, stable=True).indices
changed(torch.ones(300_000, dtype=torch.long, device=a.device), torch.zero_)[::70_000]
torch.full((300, 900), 7, device=a.device).fill_(a[0, 0])[::70, ::300]
changed(torch.zeros(300_000, dtype=torch.int, device=a.device), lambda x: x[5:9].fill_(3))[:12]
"""
CODE = """
generator = torch.Generator().manual_seed(1)
a = torch.randint(-5, 9, (6, 8), generator=generator)
b = torch.randint(1, 7, (6, 8), generator=generator)


def flat(x):
    return [x] if isinstance(x, torch.Tensor) else [z for y in x for z in flat(y)]


def changed(x, f):
    f(x)
    return x


def same(x, y):
    return (x.shape, x.dtype) == (y.shape, y.dtype) and torch.allclose(x.double(), y.double())


wrong = []
for line in EXPRESSIONS:
    want = flat(eval(line, {"torch": torch, "a": a, "b": b, "changed": changed}))
    try:
        got = flat(eval(line, {"torch": torch, "a": a.cuda(), "b": b.cuda(), "changed": changed}))
        got = [x.cpu() for x in got]
    except Exception as error:
        wrong.append(f"{line}: {type(error).__name__}: {str(error)[:200]}")
        continue
    if len(got) != len(want) or not all(map(same, got, want)):
        wrong.append(f"{line}: {got} instead of {want}"[:400])
tell(wrong=wrong)
"""


def test_integer_operators_give_what_they_give_on_the_cpu(bench: Bench) -> None:
    lines = EXPRESSIONS.strip().splitlines()
    assert len(lines) >= 140
    told = bench.run(f"EXPRESSIONS = {lines!r}\n{CODE}")
    assert told["wrong"] == []
