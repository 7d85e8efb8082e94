"""Words about memory that a log quotes, and the same words where the program reports them."""

from __future__ import annotations

import time

import pytest

from oomdoctor.explain.diagnose import diagnose
from oomdoctor.explain.reading.lines.stream import lines
from oomdoctor.explain.reading.scan import scan
from oomdoctor.explain.training.known import Given
from oomdoctor.records.report.diagnosis import Diagnosis

OOM = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 16.00 GiB of "
    "which 512.00 MiB is free. Of the allocated memory 12.00 GiB is allocated by PyTorch."
)
SHORT = "CUDA out of memory. Tried to allocate 2.00 GiB"
TRACE = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 30, in f\n'
KEY_ERROR = f"{TRACE}    y = d['x']\nKeyError: 'x'\n"
RUN = "step 1 loss 2.1\nstep 2 loss 2.0\n"


def read(text: str) -> tuple[Diagnosis, ...]:
    incidents, facts = scan(lines([text.encode()]))
    return diagnose("log", incidents, facts, Given())


QUOTED = {
    "raised in the source of a frame": f'{TRACE}    raise RuntimeError("{SHORT}")\nKeyError: 1\n',
    "compared in the source of a frame": (
        f'{TRACE}    if "{SHORT}" in str(error):\n  File "a.py", line 1, in g\nKeyError: 1\n'
    ),
    "a comment in a cell": (
        "KeyError        Traceback (most recent call last)\nCell In[3], line 12\n     11 y = f(x)\n"
        f"---> 12 z = d['a']\n     13 except E:  # RuntimeError: {SHORT}\n     14     "
        f"print('{SHORT}')"
        "\n\nKeyError: 'a'\n"
    ),
    "a comment in rich's box": (
        "╭── Traceback (most recent call last) ──╮\n│ /home/me/t.py:12 in f │\n"
        f"│ ❱ 12 │   z = d['a'] │\n│   13 │   except E:  # RuntimeError: {SHORT} "
        f"│\n╰──╯\nKeyError: 1\n"
    ),
    "a search in sources": (
        f'$ grep -rn "out of memory" .\n./a.py:12:    raise RuntimeError("{SHORT}")\n'
        f"src/b.py:3:# RuntimeError: {SHORT}\nREADME.md:7:RuntimeError: {SHORT}\n"
    ),
    "a traced command and its output": (
        f"+ echo 'Note: RuntimeError: {SHORT}'\nNote: RuntimeError: {SHORT}\n{RUN}"
    ),
    "a command": f'$ echo "RuntimeError: {SHORT}" >> notes.txt\n$ python train.py\n{KEY_ERROR}',
    "searches in the kernel's log": (
        "$ dmesg | grep -i 'out of memory: killed process'\n$ journalctl -k | grep 'oom-kill:...'\n"
    ),
    "documentation": (
        "## Troubleshooting\n\n### CUDA out of memory\n\n"
        f"If you get `RuntimeError: {SHORT}`, reduce the batch size.\n\n"
        "- **OOMKilled**: raise the limit of the pod.\n- Exit code 137 means that it was killed.\n"
    ),
    "advice with the figures of a card": f"If you see an error like {OOM} then use LoRA.\n",
    "advice at the start": (
        "Note: if you run into 'torch.OutOfMemoryError: CUDA out of memory.', set X.\n" + KEY_ERROR
    ),
    "titles of commits": (
        "a1b2c3d Fix RuntimeError: CUDA out of memory in evaluation\n"
        "b2c3d4e Handle DataLoader worker (pid 3) is killed by signal: Killed\n"
    ),
    "a commit": (
        "commit 0a1b2c3d4e5f60718293a4b5c6d7e8f901234567\nAuthor: A B <a@b.c>\n"
        f"Date:   Mon Jan 1 00:00:00 2026\n\n    Work around RuntimeError: {SHORT}\n"
    ),
    "a change": (
        f"diff --git a/t.py b/t.py\n@@ -1,3 +1,4 @@\n-    print('{SHORT}')\n"
        f"+    # RuntimeError: {SHORT}\n+    msg = 'RuntimeError: {SHORT}'\n"
    ),
    "a row of data": (
        f'{{"instruction": "How do I fix RuntimeError: {SHORT}?", "output": "Use LoRA."}}\n'
        + KEY_ERROR
    ),
    "a row of data with line ends": (
        f'{{"prompt": "I get\\nRuntimeError: {SHORT}\\nWhy?", "completion": "Use LoRA."}}\n{RUN}'
    ),
    "a printed example": (
        f"Sample 0: <s>[INST] I get torch.OutOfMemoryError: {SHORT} [/INST] Use LoRA.</s>\n{RUN}"
    ),
    "a printed conversation": (
        f"<|im_start|>user\nMy run prints:\nRuntimeError: {OOM}\nwhat now?<|im_end|>\n"
        f"<|im_start|>assistant\nUse LoRA.<|im_end|>\n{RUN}{{'train_runtime': 12.3}}\n"
    ),
    "a table of data": f'title,body\n"{SHORT}","please help"\n',
    "a configuration": (
        "batch_size: 8  # 16 gives RuntimeError: CUDA out of memory\nretry_on:\n"
        "  - 'RuntimeError: CUDA out of memory'\n  - OOMKilled\nretry_exit_codes: [137]\n"
    ),
    "a comment in a configuration": (
        "policy:\n  values: [137]\n  # OOMKilled pods are restarted\n  action: ignore\n"
    ),
    "printed settings": f"Namespace(message='{SHORT}', lr=1e-4)\n{RUN}{KEY_ERROR}",
    "a docstring": (
        'def f(x):\n    """Run f.\n\n    Raises:\n        RuntimeError: CUDA out of memory.\n'
        '    """\n    return x\n'
    ),
    "a script": (
        "import torch\n\ntry:\n    train()\nexcept RuntimeError as e:\n"
        f'    if "{SHORT}" in str(e):\n        print("RuntimeError: {SHORT}")\n'
    ),
    "an argument on a line alone": (
        f'def test_it():\n    error = RuntimeError(\n        "{OOM}"\n    )\n    assert '
        f"told(error)\n"
    ),
    "entries of a list": f'LINES = [\n    "RuntimeError: {SHORT}",\n    "another",\n]\n',
    "a block below advice": (
        "If you encounter an error message like the one below, memory is short.\n\n```\n"
        f"torch.cuda.OutOfMemoryError: {SHORT}\n```\n"
    ),
    "a note in settings": f"args: {{'strategy': 'skip', 'note': 'bs 16: {SHORT}'}}\n{RUN}",
    "an option": "  --on-oom ACTION   what to do on RuntimeError: CUDA out of memory (skip)\n",
    "a printed answer": f"Assistant: The error `RuntimeError: {SHORT}` means too much.\n{RUN}",
    "the name of a test": f"tests/test_a.py::test_message[{SHORT}] PASSED\n1 passed in 1.2s\n",
    "a comparison": 'if pod.status.reason == "OOMKilled":\n    retry(pod)\n',
}


@pytest.mark.parametrize("kind", QUOTED)
def test_quoted_words_are_no_failure(kind):
    found = read(QUOTED[kind])
    assert [one.verdict for one in found if one.is_oom] == []


def test_the_answer_says_that_the_words_are_quoted():
    (found,) = read(f"import x\n\nif failed:\n    print('RuntimeError: {SHORT}')\n")
    assert (found.look_alike, found.resource, found.line_number) == ("quoted", "none", 4)
    assert "quoted" in found.verdict
    assert found.short_answer


def test_another_failure_matters_more_than_quoted_words():
    (found,) = read(QUOTED["printed settings"])
    assert found.look_alike == "key"


REPORTED = {
    "a comment": f"# RuntimeError: {OOM}",
    "a short comment alone": f"# RuntimeError: {SHORT}",
    "a person": f"I keep getting `torch.OutOfMemoryError: {OOM}` when I train.",
    "a person who tells when": (
        f"When I use batch size 8 I see this: RuntimeError: {OOM} If you know why"
    ),
    "a person with a condition": f"If the batch size is 8 I get RuntimeError: {SHORT}",
    "backticks": f"`RuntimeError: {SHORT}`",
    "an item": f"- 8B, batch 4: RuntimeError: {SHORT}",
    "an item in a list of findings": f"Findings:\n- RuntimeError: {SHORT}\n- it was slow\n",
    "a field of JSON": f'{{"status": "error", "message": "{OOM}"}}',
    "a traceback in JSON": (
        '{"level": "ERROR", "exc_info": "Traceback (most recent call last):\\n  File \\"/a.py\\", '
        "line "
        f'3, in f\\n    x\\ntorch.OutOfMemoryError: {OOM}"}}'
    ),
    "a logger": f"2026-01-01 00:00:00 ERROR Training failed: {OOM}",
    "a structured logger": f'time=12:00 level=error msg="{SHORT}"',
    "the repr of an exception": f"Error: OutOfMemoryError('{OOM}')",
    "a string after a colon": f'error message: "{OOM}"',
    "a result": f"error = '{SHORT}'",
    "a search in a log": f"$ grep -n memory run.log\nrun.log:337:torch.OutOfMemoryError: {OOM}",
    "raised by the program": f'{TRACE}    raise RuntimeError("{SHORT}")\nRuntimeError: {SHORT}',
    "after a source line": f"{TRACE}    except torch.OutOfMemoryError as e:\nRuntimeError: {OOM}",
    "after a cell": (
        "OutOfMemoryError      Traceback (most recent call last)\nCell In[3], line 12\n"
        f"---> 12     z = model(x)\n     13 except E:\n\nOutOfMemoryError: {OOM}"
    ),
    "a title": f"Title: {OOM}",
    "below a heading": f"## What happened\n\n{SHORT}\n",
    "below a printed example": f"<s>[INST] Hi [/INST] Hello</s>\n{RUN}RuntimeError: {SHORT}\n",
    "below an example that was cut": f"<s>[INST] Hi, this is the\n{RUN}RuntimeError: {SHORT}\n",
    "a block below a report": (
        f"We trained on one card and got this:\n\n```\nRuntimeError: {SHORT}\n```\n"
    ),
    "a message in parts": '"RuntimeError: CUDA out of memory. "\n"Tried to allocate 2.00 GiB."\n',
    "a cell of a table": f"| 8B | c32 | fail | torch.OutOfMemoryError: {OOM} |",
    "a symptom in notes": f"**Symptom:** `torch.OutOfMemoryError: {OOM}` in attention.",
    "a result in a table of values": f'bs,status\n64,"RuntimeError: {SHORT}"\n32,ok\n',
    "a test's report": f"E       RuntimeError: {SHORT}",
    "a pod": (
        "    Last State:     Terminated\n      Reason:       OOMKilled\n      Exit Code:    137\n"
    ),
    "a container": "4f2a  train:latest  Exited (137) 2 hours ago  trainer",
    "a process with a long number": (
        "run.sh: line 4: 1687899 Killed                  python train.py"
    ),
    "below code in a post": (
        f"    import torch\n    x = f()\n    model.cuda()\n    RuntimeError: {SHORT}\n"
    ),
    "a wrapped sentence": f"and then it says\nand 'RuntimeError: {OOM}'\n",
}


@pytest.mark.parametrize("kind", REPORTED)
def test_reported_words_are_a_failure(kind):
    assert read(REPORTED[kind])[0].is_oom


@pytest.mark.parametrize("sign", ["-", "|", "> ", "- ", "a(", "# ", "'", '"a":', "x = ", "if "])
def test_a_long_run_of_signs_before_the_words_costs_no_time(sign):
    start = time.process_time()
    read(f"{sign * 300} RuntimeError: {SHORT}\n")
    assert time.process_time() - start < 2
