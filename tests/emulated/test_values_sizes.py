"""Sizes that depend on values which nobody knows: as few as zeros give, or the share asked for."""

from __future__ import annotations

from typing import Any

import pytest
from emulated_bench import Bench

CODE = """
import ctypes
seen = []
number = ctypes.c_int
numbers = ctypes.c_uint64, ctypes.c_size_t, number, ctypes.c_char_p, number
@ctypes.CFUNCTYPE(None, *numbers, number, ctypes.c_void_p)
def hook(address, n, worth, operator, read, kind, to):
    seen.append([(operator or b"").decode(), read, worth])
ctypes.CDLL("libemugpu.so").emu_values_set_hook(hook)
d = "cuda"
x, score = torch.randn(1000, 4, device=d), torch.rand(1000, device=d)
many = torch.rand(100_000, device=d)
chosen = torch.topk(torch.randn(256, 8, device=d).softmax(-1), 2).indices
known = (torch.arange(1000) % 3 == 0).to(d)
repeats = score.round().long()
SIZES = '''
x[score > 0.5]
x[score < 0.5]
x[~(score > 0.5)]
many[many > 0.5]
torch.masked_select(many, many > 0.5)
torch.where(many > 0.5)[0]
torch.greater(many, 0.5).nonzero()
many.nonzero()
x[score.bool()]
x[torch.rand(1000, device=d) < 0.1]
x[x.softmax(-1)[:, 0] > 0.2]
many.unique()
(x / 0.1).floor().long().unique(dim=0)
x[torch.empty(1000, dtype=torch.bool, device=d)]
torch.repeat_interleave(x, repeats, dim=0)
sparse((score * 8).long()).coalesce().values()
sparse(known.long()).coalesce().values()
x[known]
known.nonzero()
torch.repeat_interleave(x, known.long() + 1, dim=0)
known.long().unique()
x[~torch.isnan(score)]
x[torch.isfinite(score)]
'''
READS = '''
score.mean().item()
bool(score.mean() > 3)
(score > 0.5).sum().item()
torch.bincount(chosen.flatten(), minlength=8).tolist()
bool(torch.isnan(score).any())
torch.linalg.inv(x[:4])
known.sum().item()
'''
def sparse(rows):
    return torch.sparse_coo_tensor(rows[None], x, (1000, 4))
def first_read(line):
    seen.clear()
    answer = eval(line)
    return seen[-1] if seen else None, answer if isinstance(answer, (int, list)) else None
tell(sizes={line: eval(line).shape[0] for line in SIZES.strip().splitlines()})
kept = x.clone()
kept[score > 0.5] = kept[score > 0.5] * 2
tell(experts=[torch.where(chosen == e)[0].numel() for e in range(8)])
tell(reads={line: first_read(line) for line in READS.strip().splitlines()})
class Apart(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, score):
        ctx.mask = score > 0.5
        return y[ctx.mask]
    @staticmethod
    def backward(ctx, g):
        out = g.new_zeros(1000, 4)
        out[ctx.mask] = g
        return out, None
leaf = x.clone().requires_grad_()
selected = Apart.apply(leaf, score)
seen.clear()
selected.sum().backward()
tell(apart=len(selected), backward=seen[:])
seen.clear()
x[score > 0.5]
tell(size=seen[:], checks=[bool((score == score).all()), torch.allclose(score, score + 1)])
"""
# What is selected of 1,000 by default, with `--values 5`, `half` and `max`.
SIZES = {
    "x[score > 0.5]": (0, 5, 500, 1000),
    "x[score < 0.5]": (1000, 5, 500, 1000),
    "x[~(score > 0.5)]": (1000, 995, 500, 0),
    "many[many > 0.5]": (0, 5, 50_000, 100_000),
    "torch.masked_select(many, many > 0.5)": (0, 5, 50_000, 100_000),
    "torch.where(many > 0.5)[0]": (0, 5, 50_000, 100_000),
    "torch.greater(many, 0.5).nonzero()": (0, 5, 50_000, 100_000),
    "many.nonzero()": (0, 5, 50_000, 100_000),
    "x[score.bool()]": (0, 5, 500, 1000),
    "x[torch.rand(1000, device=d) < 0.1]": (1000, 5, 500, 1000),
    "x[x.softmax(-1)[:, 0] > 0.2]": (1000, 5, 500, 1000),
    "many.unique()": (0, 5, 50_000, 100_000),
    "(x / 0.1).floor().long().unique(dim=0)": (1, 5, 500, 1000),
    # As the mask that a kernel of another library writes, such as that of torchvision's nms.
    "x[torch.empty(1000, dtype=torch.bool, device=d)]": (0, 5, 500, 1000),
    "torch.repeat_interleave(x, repeats, dim=0)": (0, 5, 0, 0),  # nothing bounds it
    "sparse((score * 8).long()).coalesce().values()": (1, 5, 500, 1000),
    "sparse(known.long()).coalesce().values()": (2,) * 4,
    "x[known]": (334,) * 4,
    "known.nonzero()": (334,) * 4,
    "torch.repeat_interleave(x, known.long() + 1, dim=0)": (1334,) * 4,
    "known.long().unique()": (2,) * 4,
    "x[~torch.isnan(score)]": (1000,) * 4,
    "x[torch.isfinite(score)]": (1000,) * 4,
}
SHARES = ("", "5", "half", "max")
NUMBER, TRUTH, INTEGER, SIZE = range(4)
UNKNOWN, BLANK, ASSUMED = range(3)


@pytest.fixture(scope="module")
def told(bench: Bench) -> dict[str, dict[str, Any]]:
    return {share: bench.run(CODE, OOMDOCTOR_EMULATED_VALUES=share) for share in SHARES}


@pytest.mark.parametrize("line", SIZES)
def test_a_size_is_the_share_of_what_is_not_known(told: dict[str, Any], line: str) -> None:
    assert tuple(told[share]["sizes"][line] for share in SHARES) == SIZES[line]


def test_routing_is_even_or_all_to_the_same_experts(told: dict[str, Any]) -> None:
    assert told[""]["experts"] == told["5"]["experts"] == [64] * 8
    assert told["max"]["experts"] == [256, 256, *[0] * 6]
    assert told["half"]["experts"] == [128, 128, 64, 64, 0, 0, 64, 64]
    assert all(sum(one["experts"]) == 512 for one in told.values())


def test_a_read_tells_the_operator_what_it_gives_and_what_it_is_worth(told: dict[str, Any]) -> None:
    assert told[""]["size"] == [["index", SIZE, BLANK]]
    assert told["max"]["size"] == [["index", SIZE, ASSUMED]]
    reads = told[""]["reads"]
    assert reads["score.mean().item()"] == [["item", NUMBER, UNKNOWN], None]
    assert reads["bool(score.mean() > 3)"][0] == ["is_nonzero", TRUTH, BLANK]
    assert reads["(score > 0.5).sum().item()"] == [["item", INTEGER, BLANK], 0]
    tokens = "torch.bincount(chosen.flatten(), minlength=8).tolist()"
    assert reads[tokens] == [["to", INTEGER, ASSUMED], [64] * 8]
    assert reads["torch.linalg.inv(x[:4])"][0][1] == TRUTH
    assert reads["known.sum().item()"] == [None, 334]
    assert told["max"]["reads"]["(score > 0.5).sum().item()"] == [["item", INTEGER, ASSUMED], 1000]


def test_a_function_of_the_program_and_its_backward_pass(told: dict[str, Any]) -> None:
    assert [told[share]["apart"] for share in SHARES] == [0, 5, 500, 1000]
    assert told["max"]["backward"] == [["index_put_", SIZE, ASSUMED]]


def test_checks_of_numbers_pass_whatever_is_selected(told: dict[str, Any]) -> None:
    for one in told.values():
        assert one["checks"] == [True, True]
        assert one["reads"]["bool(torch.isnan(score).any())"][1] is False
