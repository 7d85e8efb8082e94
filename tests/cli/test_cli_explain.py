"""`oomdoctor explain` from the outside: input, options, exit codes, streams, speed."""

from __future__ import annotations

import gzip
import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from failed_step import MESSAGE, TRACE
from snapshots import training

from oomdoctor.cli.main import run
from oomdoctor.units import MIB

ROOT = Path(__file__).parents[2]
SURVIVED = f"""step 10 loss 1.2
{MESSAGE.format(asked="2.00")}
Skipping batch, trying again with a smaller one
step 11 loss 1.1
step 12 loss 1.0
Training completed.
"""
LOOK_ALIKE = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    y = model(x)
RuntimeError: Expected all tensors to be on the same device, but found at least two devices
"""


def _start(
    arguments: Sequence[str], text: str | None = None, **changes: Any
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, "-m", "oomdoctor", *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        check=False,
        **changes,
    )


def test_a_file(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", str(trace)]) == 0
    out, err = capsys.readouterr()
    first, second = out.splitlines()[:2]
    assert first.startswith(
        "Out of GPU memory while computing the loss: tried to allocate 9.48 GiB"
    )
    assert second.startswith("Do this first: ")
    assert "/home/me/train.py:40" in out
    assert "use_liger_kernel=True" in out
    assert err == ""


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_standard_input(arguments: list[str]) -> None:
    done = _start(["explain", *arguments], TRACE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Out of GPU memory while computing the loss")
    assert done.stderr == ""


def test_on_a_terminal_it_says_how_to_paste() -> None:
    main, other = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "oomdoctor", "explain"],
        stdin=other,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert child.stderr is not None and child.stdout is not None
    ready, _, _ = select.select([child.stderr], [], [], 20)
    assert ready
    said = os.read(child.stderr.fileno(), 4096).decode()
    assert "paste" in said and "Ctrl-D" in said
    for line in TRACE.splitlines():
        os.write(main, line.encode() + b"\n")
    time.sleep(0.2)
    os.write(main, b"\x04")
    assert child.wait(20) == 0
    assert b"Out of GPU memory" in child.stdout.read()
    child.stdout.close(), child.stderr.close(), os.close(main), os.close(other)


def test_the_page_of_a_model_is_its_id(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told(model: str) -> str:
        assert run(["explain", str(trace), "--model", model]) == 0
        return capsys.readouterr().out

    plain = told("meta-llama/Llama-3.1-8B")
    assert told("https://huggingface.co/meta-llama/Llama-3.1-8B") == plain
    assert told("meta-llama/Llama-3.1-8B/") == plain


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "does not exist"),
        ("{", "is not valid JSON"),
        ('{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": "big"}',
         "config.json has no usable num_hidden_layers, hidden_size"),
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_read_is_a_warning(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, words: str
) -> None:
    folder = tmp_path / "broken"
    if content is not None:
        folder.mkdir()
        (folder / "config.json").write_text(content)
    assert run(["explain", str(trace), "--model", str(folder), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (warning,) = report["warnings"]
    assert warning["code"] == "model"
    assert warning["message"].startswith("explained without the model: ")
    assert words in warning["message"]
    assert report["diagnoses"][0]["causes"][0]["cause"] == "logits"
    assert report["diagnoses"][0]["needed_bytes"] is None


def test_an_unknown_model_is_a_warning_with_what_to_do(
    trace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert run(["explain", str(trace), "--model", "nobody/nothing"]) == 0
    out = capsys.readouterr().out
    assert "explained without the model: nobody/nothing" in out
    assert "oomdoctor models" in out


def test_model_and_sizes_name_the_tensor(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--model", "meta-llama/Llama-3.1-8B", "--seq-len", "4960", "--micro-batch", "4"]
    assert run(["explain", str(trace), *options]) == 0
    out = capsys.readouterr().out
    assert "9.48 GiB = 4 x 4960 x 128256 x 4 bytes: fp32 logits (high likelihood)" in out
    assert "without the logits (33.2 GiB) it would fit" in " ".join(out.split())
    assert "weights in bfloat16" in out  # what was assumed
    assert "oomdoctor plan meta-llama/Llama-3.1-8B --gpu 79.25GiB" in out


def test_settings_in_the_log_are_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.log"
    file.write_text(
        "model_name_or_path=meta-llama/Llama-3.1-8B,\nper_device_train_batch_size=4,\n"
        f"max_length=4960,\n{TRACE}"
    )
    assert run(["explain", str(file)]) == 0
    out = capsys.readouterr().out
    assert "4 x 4960 x 128256 x 4 bytes" in out
    assert "(named by the log)" in out


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (TRACE, 0, "Out of GPU memory"),
        (SURVIVED, 3, "the program caught the error and the run finished"),
        (LOOK_ALIKE, 3, "Not a memory failure: tensors are on different devices"),
        ("all went well, memory was fine\n", 3, "No memory failure found"),
        ("", 3, "No memory failure found"),
    ],
)
def test_exit_codes(
    text: str, code: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "log"
    file.write_text(text)
    assert run(["explain", str(file)]) == code
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.txt"], "nowhere.txt: no such file"),
        (["."], "is a folder"),
        (["-", "--seq-len", "many"], "--seq-len"),
        (["-", "--micro-batch", "0"], "--micro-batch"),
        (["-", "--format", "xml"], "--format"),
        (["-", "--config", "nowhere.yaml"], "--config: nowhere.yaml"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_usage(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["explain", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err


def test_all_faults_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "nowhere", "--seq-len", "x", "--micro-batch", "y"]) == 2
    err = capsys.readouterr().err
    assert all(word in err for word in ("nowhere", "--seq-len", "--micro-batch"))


def test_json_is_one_valid_document(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", str(trace), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    schema = json.loads((ROOT / "oomdoctor" / "data" / "report.schema.json").read_text())
    jsonschema.validate(document, schema)
    assert (document["command"], document["status"], document["exit_code"]) == ("explain", "ok", 0)
    found = document["diagnoses"][0]
    assert (found["source"], found["is_oom"], found["phase"]) == (str(trace), True, "loss")
    assert found["where"]["line"] == 40


def test_json_of_an_error_names_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "nowhere", "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert (document["command"], document["diagnoses"]) == ("explain", [])


def test_several_files_are_one_table(
    tmp_path: Path, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fine = tmp_path / "fine.txt"
    fine.write_text("done\n")
    packed = tmp_path / "packed.gz"
    packed.write_bytes(gzip.compress(TRACE.encode()))
    assert run(["explain", str(trace), str(fine), str(packed)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("2 of 3 logs ended with an out-of-memory error\n")
    assert out.count("logits (high)") == 2
    assert "no memory failure" in out


def test_output_file(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "answer.md"
    assert run(["explain", str(trace), "--output", str(file)]) == 0
    assert "### Other remedies" in file.read_text()
    assert capsys.readouterr().out.startswith("Out of GPU memory")


@pytest.mark.slow
def test_terminal_escapes_of_a_log_stay_there() -> None:
    evil = "\x1b]52;c;aGVsbG8=\x07\x1b]0;owned\x07\x1b[2J\x1b[10;10H"
    text = TRACE.replace("/home/me/train.py", f"/home/{evil}/train.py").replace(
        "model(**batch)", f"model({evil})"
    )
    for options in ([], ["--verbose"], ["--format", "markdown"], ["--json"], ["--format", "csv"]):
        done = _start(["explain", *options], evil + text + evil)
        assert done.returncode == 0
        assert "\x1b" not in done.stdout + done.stderr
        assert "\x07" not in done.stdout + done.stderr


def test_a_reader_that_goes_away_is_no_traceback(trace: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m oomdoctor explain {trace} --verbose | head -1",
        shell=True, capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout.startswith("Out of GPU memory")
    assert "Traceback" not in done.stderr


def test_it_never_loads_what_a_training_loads(trace: Path) -> None:
    code = (
        "import sys\nfrom oomdoctor.cli.main import run\n"
        f"run(['explain', {str(trace)!r}, '--model', 'meta-llama/Llama-3.1-8B'])\n"
        "print(*sorted({m.partition('.')[0] for m in sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    loaded = set(done.stderr.split())
    heavy = {"torch", "transformers", "peft", "accelerate", "bitsandbytes", "huggingface_hub",
             "numpy", "pynvml", "yaml"}  # fmt: skip
    assert not loaded & heavy


def test_help_has_examples_and_the_next_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "--help"]) == 0
    out = capsys.readouterr().out
    assert out.count("oomdoctor explain ") >= 3 and "Next:" in out


def test_a_snapshot_of_the_failure_says_what_held_the_memory(tmp_path: Path) -> None:
    writer = training()
    writer.alloc("activations", 24 * MIB, "forward")
    writer.note("oom", 5 * MIB, 2048 * MIB, "forward")
    snapshot = writer.write(tmp_path / "memory_snapshot.pickle")
    log = tmp_path / "trace.txt"
    log.write_text(MESSAGE.format(asked="2.00"))
    ended = _start(["explain", str(log), "--snapshot", str(snapshot)])
    assert ended.returncode == 0 and ended.stderr == ""
    assert "Held  " in ended.stdout and "(by memory_snapshot.pickle)" in ended.stdout
    log.write_text(MESSAGE.format(asked="9.48"))
    ended = _start(["explain", str(log), "--snapshot", str(snapshot), "--json"])
    document = json.loads(ended.stdout)
    assert document["diagnoses"][0]["held"] is None
    assert [one["code"] for one in document["warnings"]] == ["snapshot_unused"]


def test_a_snapshot_that_is_none_is_an_error(tmp_path: Path) -> None:
    log = tmp_path / "trace.txt"
    log.write_text(TRACE)
    ended = _start(["explain", str(log), "--snapshot", str(log)])
    assert ended.returncode == 2 and ended.stdout == ""
    assert "trace.txt" in ended.stderr
