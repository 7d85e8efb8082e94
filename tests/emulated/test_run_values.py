"""Runs whose memory depends on values that no kernel computed: a range, or an exact answer."""

from __future__ import annotations

from textwrap import indent

import pytest
from emulated_run import Watched
from weekly_rows import weekly

from oomdoctor.records.report.report import Report
from oomdoctor.units import GIB

ROWS, WIDTH = 1 << 20, 256
DATA = ROWS * WIDTH * 4  # 1 GiB
START = f"""
import torch
x = torch.randn({ROWS}, {WIDTH}, device="cuda")
score = torch.rand({ROWS}, device="cuda")
print("only once", flush=True)
"""
TRAIN = """
import torch
d = "cuda"
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
layer = torch.nn.Linear(64, 64).cuda()
recurrent = torch.nn.GRU(64, 64, 2, batch_first=True, dropout=0.1).cuda()
optimizer = torch.optim.SGD([*layer.parameters(), *recurrent.parameters()])
scaler = torch.amp.GradScaler()
lengths = torch.tensor([3, 9, 4, 7] * 16)
known = (torch.arange(4096) % 4 == 0).to(d)
right = 0
for step in range(4):
    x = torch.randn(4096, 64, device=d)
    rows = pack_padded_sequence(x.view(64, 64, 64), lengths, True, enforce_sorted=False)
    with torch.autocast(d, torch.float16):
        y = layer(x)[known]
        loss = y.square().mean() + pad_packed_sequence(recurrent(rows)[0])[0].mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    print(scaler.get_scale())
    print("loss", loss.item(), known.sum().item(), torch.unique(known.long()).tolist())
    seen = (y.argmax(-1) == 3).sum().item()
    if step == 9 and seen > 3:
        break
"""
# Every expert keeps what it needs for the backward pass: by rows, not by experts.
EXPERTS = """
import torch
d, experts, rows, width = "cuda", 8, 4096, 1024
router = torch.nn.Linear(width, experts).cuda()
layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(experts)).cuda()
optimizer = torch.optim.SGD([*router.parameters(), *layers.parameters()])
for step in range(4):
    x = torch.randn(rows, width, device=d)
    weights, chosen = router(x).softmax(-1).topk(2)
    out = torch.zeros_like(x)
    for e in range(experts):
        row, slot = torch.where(chosen == e)
        out = out.index_add(0, row, layers[e](x[row]) * weights[row, slot, None])
    out.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
"""


def _ends(report: Report) -> tuple[int, int]:
    found = report.unknown_sizes
    assert found is not None and found.lower_bytes is not None and found.upper_bytes is not None
    return found.lower_bytes, found.upper_bytes


@pytest.mark.parametrize(
    ("line", "operator"),
    [
        weekly("y = x[score > 0.5]", "index"),  # test_all_follows_the_upper_end has it too
        weekly("y = x.masked_select((score > 0.5)[:, None])", "masked_select"),
        ("y = x[(score > 0.5).cpu().numpy()]", "to"),
        ("n = (score > 0.5).sum().item(); y = torch.empty(n, 256, device='cuda')", "item"),
        weekly(
            "n = (score > 0.5).count_nonzero().item(); y = torch.empty(n, 256, device='cuda')",
            "item",
        ),
        (
            f"n = torch.randint(1, {ROWS + 5}, (1,), device='cuda').item(); "
            "y = torch.empty(n, 256, device='cuda')",
            "item",
        ),
    ],
)
def test_a_mask_of_scores_gives_a_range(watched: Watched, line: str, operator: str) -> None:
    report, out, error = watched.run("RTX 4090", START + line)
    lower, upper = _ends(report)
    assert lower < 1.5 * DATA
    assert upper >= 2 * DATA
    assert report.ranks[0].peak_reserved_bytes == upper  # the report is about the upper end
    assert report.unknown_sizes is not None
    assert [one.operator for one in report.unknown_sizes.sizes] == [operator]
    assert out.count("only once") == 1
    assert "running the command again" in error and "not exact" in error
    assert "memory is exact" not in error


def test_all_follows_the_upper_end(watched: Watched) -> None:
    report, _, error = watched.run("2GiB", START + "y = x[score > 0.5]")
    lower, upper = _ends(report)
    assert lower < 1.5 * GIB < 2 * GIB < upper
    assert (report.status, report.exit_code) == ("no", 3)
    assert report.smallest_gpu is not None and report.smallest_gpu.total_bytes > upper
    assert report.smallest_gpu.name in report.next_commands[0]
    assert not any("--values" in line for line in report.next_commands)
    assert "Out of GPU memory" in error


def test_half_of_the_rows(watched: Watched) -> None:
    options = ("--values", "half")
    report, _, error = watched.run("RTX 4090", START + "y = x[score > 0.5]", options=options)
    index = 8 * ROWS // 2
    needed = DATA + 4 * ROWS + ROWS + index + DATA // 2
    assert needed - ROWS <= report.ranks[0].peak_allocated_bytes < needed + index + 4 * ROWS
    assert report.unknown_sizes is not None and report.unknown_sizes.assumed == "half"
    assert "with --values half" in error and "running the command again" not in error


def test_known_masks_counts_and_a_logged_loss_leave_memory_exact(watched: Watched) -> None:
    report, out, error = watched.run("T4", TRAIN)
    assert report.unknown_sizes is None
    assert "memory is exact except for what the warnings name." in error  # cuDNN's RNN
    assert not report.ranks[0].unknown_branches
    assert "1024 [0, 1]" in out
    assert report.smallest_gpu is not None


def test_routing_of_experts_goes_from_even_to_all_to_the_same(watched: Watched) -> None:
    report, _, error = watched.run("RTX 4090", EXPERTS)
    lower, upper = _ends(report)
    # The rows of all experts together are the same: at most one expert's temporaries are added.
    assert lower <= upper < 2 * lower
    assert "(where, " in error


def test_zeros_that_end_the_command_and_the_most_that_does(watched: Watched) -> None:
    report, _, error = watched.run("RTX 4090", START + "y = score[score > 0.5].max()")
    assert (report.status, report.exit_code) == ("ok", 0)
    assert "With zeros it failed: RuntimeError: max()" in error
    script = START + "y = x[score > 0.5]\nif len(y): raise ValueError('too many')"
    report, _, error = watched.run("RTX 4090", script)
    assert (report.status, report.smallest_gpu) == ("ok", None)
    assert "May fit" in error and "ValueError: too many" in error
    assert "--values half" in report.next_commands[0]


# What a step does beside its loss: the code of a branch.
BRANCH = """
import torch
d, t, best, losses, kept = "cuda", 0.05, float("inf"), [], []
layer = torch.nn.Linear(1024, 1024, device=d)
big = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, device=d) for _ in range(8)))
optimizer = torch.optim.SGD([*layer.parameters(), *big.parameters()])
for step in range(5):
    x = y = torch.randn(4096, 1024, device=d)
    loss = layer(x).square().mean()
BODY
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LOGS = """
losses.append(loss.item())
if loss.item() < best:
    best = loss.item(); torch.save(layer.state_dict(), "best.pt")
if loss > 1e4 or not torch.isfinite(loss):
    raise ValueError("diverged")
torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0, error_if_nonfinite=True)
"""


def _branch(body: str) -> str:
    return BRANCH.replace("BODY", indent(body.strip("\n"), "    "))


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("if loss > t: loss = loss + big(x).mean()", "if"),
        weekly("if loss.item() < 1e-3: break", "if"),
        weekly("while y.mean().item() > 0.9: y = layer(y.detach())", "while"),
    ],
)
def test_a_branch_on_a_value_gives_a_range(watched: Watched, body: str, word: str) -> None:
    report, _, error = watched.run("RTX 4090", _branch(body))
    lower, upper = _ends(report)
    assert lower < upper == report.ranks[0].peak_reserved_bytes
    assert report.unknown_sizes is not None
    assert [size.operator for size in report.unknown_sizes.sizes] == [word]
    assert report.ranks[0].unknown_branches == ()
    assert "train.py:10 branches on a value" in error and "memory is not exact" in error


def test_branches_that_log_save_and_check_leave_memory_exact(watched: Watched) -> None:
    report, _, error = watched.run("RTX 4090", _branch(LOGS))
    assert report.unknown_sizes is None
    assert "memory is exact. No" in error and "running the command again" not in error


def test_a_loop_that_waits_for_a_value_is_ended(watched: Watched) -> None:
    report, _, error = watched.run(
        "RTX 4090", _branch("while y.mean().item() < 0.9: y = layer(y)\nloss = loss + y.mean()")
    )
    assert [warn.code for warn in report.warnings] == ["unknown_loop"]
    assert report.unknown_sizes is not None and report.smallest_gpu is None
    assert "ended after 256 turns, and each turn kept memory" in error
    assert "May fit" in error and "No shape limits train.py:10" in error


# As a kernel of Jupyter runs cells: their code is in no file, and Python keeps it for tracebacks.
CELLS = f"""
import linecache, os
def run(number, text):
    name = f"/tmp/ipykernel_{{os.getpid()}}/{{number}}.py"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    exec(compile(text, name, "exec"), globals())
run(1, '''{START}''')
run(2, "SECOND")
run(3, "THIRD")
"""


@pytest.mark.parametrize(
    ("second", "third", "judged"),
    [
        ("share = score.mean().item()", "y = torch.empty(int(share * 9), device='cuda')", True),
        ("keep = (score > 0.5).cpu().numpy()", "y = x[keep]", True),
        ("share = score.mean().item()", "print(f'{share:.2f}')", False),
    ],
)
def test_code_that_is_in_no_file_is_judged(
    watched: Watched, second: str, third: str, judged: bool
) -> None:
    script = CELLS.replace("SECOND", second).replace("THIRD", third)
    report, _, error = watched.run("RTX 4090", script)
    sizes = report.unknown_sizes
    assert (sizes is not None) is judged
    if sizes is not None:
        assert all(size.file.endswith("/2.py") and size.line == 1 for size in sizes.sizes)
    assert ("memory is exact." in error) is not judged


# As IPython runs the rest of a cell.
MAGIC = '''
shell = """
class Shell:
    def run_cell_magic(self, name, line, rest):
        exec(compile(rest, "<timed exec>", "exec"), names)
"""
library = {"names": globals()}
exec(compile(shell, "/usr/lib/python3/site-packages/IPython/core.py", "exec"), library)
get_ipython = library["Shell"]
'''


def test_the_rest_of_a_timed_cell_is_judged(watched: Watched) -> None:
    rest = "y = 1\\\\nif score.mean().item() > .5: y = x.clone()"
    timed = f'get_ipython().run_cell_magic("time", "", "{rest}")'
    cells = CELLS.replace("SECOND", timed.replace('"', '\\"'))
    report, _, error = watched.run("RTX 4090", MAGIC + cells.replace("THIRD", "pass"))
    lower, upper = _ends(report)
    assert upper >= lower + DATA
    assert "/2.py:3 branches on a value" in error


def test_code_of_the_command_line_is_judged(watched: Watched) -> None:
    code = START + "n = int(score.mean().item() * 9)\ny = torch.empty(n, device='cuda')"
    report, _, error = watched.run("RTX 4090", "", "python", "-c", code)
    assert report.unknown_sizes is not None
    assert [(size.file, size.line) for size in report.unknown_sizes.sizes] == [("<string>", 6)]
    assert "memory is exact" not in error


def test_the_end_of_a_process_does_not_wait_for_the_compiler(watched: Watched) -> None:
    """Jupyter kills a kernel that takes long to end, and the record of its memory would be lost."""
    script = """
import atexit, sys
atexit.register(lambda: print("compiler", "torch._inductor" in sys.modules))
import torch
x = torch.randn(1024, device="cuda")
"""
    report, out, _ = watched.run("RTX 4090", script)
    assert "compiler False" in out
    assert report.ranks[0].peak_allocated_bytes == 4096


@pytest.mark.parametrize(
    "line",
    [
        "y = torch.repeat_interleave(x[:4], score[:4].round().long(), dim=0)",
        weekly("y = score.long().bincount()"),
        weekly("y = x[: score.long()[0]].clone()"),
        "y = torch.empty(int(score.mean().item() * 1000), device='cuda')",
        weekly("y = torch.empty(int(score[:100].tolist()[7]), device='cuda')"),
        weekly("y = torch.arange(score[0], device='cuda')"),
        weekly("y = x[(score.cpu() > 0.5).to('cuda')]"),
        "import helper; y = helper.cut(x, score.mean().item())",
    ],
)
def test_what_no_shape_limits_is_named(watched: Watched, line: str) -> None:
    (watched.folder / "helper.py").write_text("def cut(x, n): return x[: int(len(x) * n)].clone()")
    report, _, error = watched.run("RTX 4090", START + line)
    assert report.unknown_sizes is not None
    assert [one.bounded for one in report.unknown_sizes.sizes] == [False]
    assert "No shape limits train.py:6" in error and report.smallest_gpu is None
    assert "memory is exact" not in error
