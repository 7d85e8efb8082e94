"""One message as people paste it: quoted, fenced, wrapped, cut within words, on one line.

The wrapping and quoting are ours, the shapes of the messages PyTorch's (c10/cuda/
CUDACachingAllocator.cpp, 2.5).
"""

from __future__ import annotations

import html
import textwrap

import pytest

from oomdoctor.explain.reading.lines.stream import lines
from oomdoctor.explain.reading.printed_sizes import size_bytes
from oomdoctor.explain.reading.scan import scan
from oomdoctor.records.report.diagnosis import Incident

MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB. GPU 0 has a total "
    "capacity of 23.64 GiB of which 1.20 GiB is free. Including non-PyTorch memory, this process "
    "has 22.43 GiB memory in use. Of the allocated memory 20.11 GiB is allocated by PyTorch, and "
    "1.87 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large "
    "try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
FIGURES = {
    "requested_bytes": "1.96 GiB",
    "capacity_bytes": "23.64 GiB",
    "free_bytes": "1.20 GiB",
    "process_bytes": "22.43 GiB",
    "allocated_bytes": "20.11 GiB",
    "reserved_unallocated_bytes": "1.87 GiB",
}
TRACE = f"""Traceback (most recent call last):
  File "/home/u/train.py", line 61, in main
    loss.backward()
  File "/home/u/venv/lib/python3.11/site-packages/torch/_tensor.py", line 581, in backward
    torch.autograd.backward(
  File "/home/u/venv/lib/python3.11/site-packages/torch/autograd/graph.py", line 825, in _engine_run
    return Variable._execution_engine.run_backward(
{MESSAGE}"""


def _quoted(text: str, sign: str) -> str:
    return "\n".join(sign + line for line in text.split("\n"))


def _wrapped(text: str, width: int) -> str:
    return "\n".join("\n".join(textwrap.wrap(line, width)) for line in text.split("\n"))


def _cut(text: str, width: int) -> str:
    """As a terminal breaks a line: within words."""
    return "\n".join(text[i : i + width] for i in range(0, len(text), width))


def _only(text: str) -> Incident:
    found, _ = scan(lines([text.encode()]))
    assert len(found) == 1
    return found[0]


def _figures_are_whole(found: Incident) -> None:
    for name, figure in FIGURES.items():
        assert getattr(found.event, name) == size_bytes(figure), name


@pytest.mark.parametrize(
    "text",
    [
        TRACE,
        *(_quoted(TRACE, sign) for sign in ("> ", ">> ", "> > ", "    ", "# ", "gpu01: ", " 3: ")),
        *(_quoted(TRACE, sign) for sign in ("2025-06-02T10:00:00.12Z stderr F ", "train-1  | ")),
        "Hi all, I get this:\n\n```python\n" + TRACE + "\n```\nAny ideas?",
        "\u8bad\u7ec3\u65f6\u62a5\u9519\uff1a\n" + TRACE + "\n\u600e\u4e48\u529e\uff1f",
        TRACE.replace('"', "\u201d"),
        TRACE.replace("\n", "\r\n"),
        TRACE.replace("\n", "\\n"),
        TRACE.replace(" GiB", "\u00a0GiB"),
        html.escape(TRACE),
        html.escape(TRACE).replace("&quot;", "&#34;"),
        " ".join(TRACE.split()),
        "\n".join(line.strip() for line in TRACE.split("\n")),
        *(_wrapped(TRACE, width) for width in (40, 60, 79, 100)),
        *(_quoted(_wrapped(TRACE, width), "> ") for width in (60, 79)),
    ],
)
def test_a_pasted_traceback_is_read(text: str) -> None:
    found = _only(text)
    _figures_are_whole(found)
    assert found.phase == "backward"
    assert found.where is not None and found.where.line == 61


@pytest.mark.parametrize("width", [*range(40, 121, 7), 79, 80])
@pytest.mark.parametrize("sign", ["", "> ", "[rank0]: "])
def test_a_message_that_a_terminal_cut_within_words_is_whole(width: int, sign: str) -> None:
    _figures_are_whole(_only(_quoted(_cut(MESSAGE, width), sign)))


@pytest.mark.parametrize(
    "text",
    [
        MESSAGE.removeprefix("torch.OutOfMemoryError: "),
        f"I keep getting `{MESSAGE}` when I train.",
        f"- {MESSAGE}",
        f"2025-03-02 10:11:12.345 | ERROR    | app:run:12 - {MESSAGE}",
        f"<pre><code>{MESSAGE}</code></pre>",
        MESSAGE.replace("1.96 GiB", "**1.96 GiB**"),
        "\n".join(f'"{line} "' for line in textwrap.wrap(MESSAGE, 60)),
    ],
)
def test_the_message_alone_is_read(text: str) -> None:
    _figures_are_whole(_only(text))


def test_words_about_memory_are_no_failure() -> None:
    for text in (
        "How to avoid CUDA out of memory errors when training? Use gradient checkpointing.",
        "GPU memory usage is 20 GiB of 24 GiB, I am worried about running out of memory.",
        "|   CUDA OOMs: 0            |        cudaMalloc retries: 0         |",
        "| N/A   45C    P0    27W /  70W |  14990MiB / 15360MiB |     98%      Default |",
        '"State": {"Status": "exited", "OOMKilled": false, "ExitCode": 1}',
    ):
        assert scan(lines([text.encode()]))[0] == ()


@pytest.mark.parametrize("width", [40, 50, 60, 70])
def test_frames_that_were_wrapped_are_whole(width: int) -> None:
    path = "/home/u/a-long-name/of-a-folder/train.py"
    found = _only(_wrapped(TRACE.replace("/home/u/train.py", path), width))
    assert found.where is not None
    assert (found.where.file, found.where.line, found.where.function) == (path, 61, "main")


@pytest.mark.parametrize("end", ["", " ", "\t"])
@pytest.mark.parametrize("before", ["", "ERROR: ", "ValueError: no\nDuring handling:\n"])
def test_a_traceback_that_lost_its_line_ends_is_whole(before: str, end: str) -> None:
    carets = TRACE.replace("loss.backward()\n", "loss.backward()\n    ~~~~~~~~~~~~~^^\n")
    found = _only(before + carets.replace("\n", end))
    assert found.where is not None
    assert (found.where.line, found.where.code) == (61, "loss.backward()")
    assert [frame.function for frame in found.frames] == ["main", "backward", "_engine_run"]
    assert found.frames[-1].code == "return Variable._execution_engine.run_backward("


@pytest.mark.parametrize("width", range(40, 121))
@pytest.mark.parametrize("sign", ["", "[rank0]: "])
def test_frames_that_a_terminal_cut_within_words_are_whole(width: int, sign: str) -> None:
    signed = (f"{sign}{line}" for line in TRACE.split("\n"))
    found = _only("\n".join(_cut(line, width) for line in signed))
    _figures_are_whole(found)
    # A third part of a line has lost its rank, and with it the tie to the first.
    if not sign or width > 55:
        assert [frame.line for frame in found.frames] == [61, 581, 825]
        assert found.frames[-1].function == "_engine_run"
        assert found.frames[0].code == "loss.backward()"


def test_a_long_line_that_was_not_cut_takes_nothing_in() -> None:
    """The message is as wide as the widest line, but no line goes on below it."""
    text = TRACE.replace(MESSAGE, "RuntimeError: CUDA error: out of memory" + "!" * 61)
    widest = max(map(len, text.split("\n")))
    assert len(text.split("\n")[-1]) == widest
    assert [frame.line for frame in _only(text).frames] == [61, 581, 825]


def test_lines_as_wide_as_the_message_are_whole_where_another_is_wider() -> None:
    frame = 'File "/home/u/tr.py", line 61, in main_'
    text = 'Traceback (most recent call last):\nFile "/a/wider/path/of/x.py", line 5, in <module>\n'
    text += f"main_()\n{frame}\nstep()\nRuntimeError: CUDA error: out of memory"
    assert len(frame) == len(text.split("\n")[-1])
    assert [frame.function for frame in _only(text).frames] == ["<module>", "main_"]
    assert _only(text).frames[-1].code == "step()"


def test_a_message_without_an_exception_ends_its_traceback_too() -> None:
    first = MESSAGE.removeprefix("torch.OutOfMemoryError: ").replace("1.96", "1.50")
    text = TRACE.replace(MESSAGE, first) + "\n" + "nothing here\n" * 70 + MESSAGE
    found, _ = scan(lines([text.encode()]))
    assert [len(one.frames) for one in found] == [3, 0]


VALUES = [f"        [ 0.0{n:03}, -0.0017,  0.0249,  ...,  0.0006]," for n in range(90)]


def test_values_between_frames_as_ipython_shows_them_do_not_end_a_traceback() -> None:
    """Shape of `%xmode Verbose`, IPython 9."""
    text = "\n".join(
        [
            "OutOfMemoryError                          Traceback (most recent call last)",
            "Cell In[1], line 27, in train_step(model=Llama(",
            "  (lm_head): Linear(in_features=64, out_features=256, bias=False)",
            "), step=0)",
            "---> 27 optimizer.step()",
            "        optimizer = AdamW (",
            ")     28 optimizer.zero_grad()",
            "",
            "File /opt/venv/lib/site-packages/torch/optim/adam.py:238, in Adam.step(self",
            "--> 238     has_complex = self._init_group(",
            "        group = {'params': [Parameter containing:",
            *VALUES,
            "    239         group,",
            "",
            MESSAGE,
        ]
    )
    found = _only(text)
    assert found.where is not None
    assert (found.where.file, found.where.code) == ("Cell In[1]", "optimizer.step()")
    assert (found.phase, len(found.frames)) == ("optimizer", 2)
    # A traceback that ended takes no later failure in, however near.
    ended = text.replace(MESSAGE, "ValueError: no") + "\n" * 70 + MESSAGE
    assert scan(lines([ended.encode()]))[0][0].frames == ()


def test_variables_in_a_box_within_the_box_are_left_out() -> None:
    """Shape of `rich.traceback.install(show_locals=True)`, rich 14."""
    width = 78
    inner = [f"│ {line.strip():<{width - 6}} │" for line in (*VALUES, "/a/b.py:7 in f", "❱ 7 │ x")]
    rows = [
        "/home/u/train.py:25 in train_step",
        "❱ 25 │   loss.backward()",
        f"╭{' locals ':─^{width - 4}}╮",
        *inner,
        f"╰{'─' * (width - 4)}╯",
        "/opt/venv/lib/python3.11/site-packages/torch/_tensor.py:623 in backward",
        "❱ 623 │   torch.autograd.backward(",
    ]
    box = [f"╭{' Traceback (most recent call last) ':─^{width}}╮"]
    box += [f"│ {row:<{width - 2}} │" for row in rows]
    box += [f"╰{'─' * width}╯", MESSAGE]
    found = _only("\n".join(box))
    assert [(frame.line, frame.code) for frame in found.frames] == [
        (25, "loss.backward()"),
        (623, "torch.autograd.backward("),
    ]
    assert found.line_number == len(box)
