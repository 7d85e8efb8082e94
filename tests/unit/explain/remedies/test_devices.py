"""What is typed for a device and a machine: no other device's tools, no container unseen."""

from __future__ import annotations

import pytest

from oomdoctor.explain.diagnose import diagnose
from oomdoctor.explain.reading.scan import scan
from oomdoctor.explain.remedies.text_values import device_of, device_values
from oomdoctor.explain.training.known import Given
from oomdoctor.records.report.diagnosis import Diagnosis, ListedProcess

HELD = (
    "{} out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 63.98 GiB of "
    "which 212.00 MiB is free. Process 77120 has 58.13 GiB memory in use. Of the allocated memory "
    "4.90 GiB is allocated by PyTorch, and 96.10 MiB is reserved by PyTorch but unallocated."
)
SPLIT = (
    "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 15.98 GiB of which 734.00 MiB is free. Of the allocated memory 8.12 GiB is "
    "allocated by PyTorch, and 6.40 GiB is reserved by PyTorch but unallocated."
)
MPS = (
    "RuntimeError: MPS backend out of memory (MPS allocated: 17.61 GB, other allocations: 384.00 "
    "KB, max allowed: 18.13 GB). Tried to allocate 576.00 MB on private pool."
)
SERVED = "Process 39 has 7.30 GiB memory in use. Process 38 has 7.30 GiB memory in use. "


def _answer(text: str) -> Diagnosis:
    found, facts = scan(text.split("\n"))
    return diagnose("log", found, facts, Given())[0]


def _keys(found: Diagnosis) -> list[str | None]:
    return [remedy.key for remedy in found.remedies]


def _lines(found: Diagnosis) -> str:
    return "\n".join(line for remedy in found.remedies for line in remedy.lines.values())


@pytest.mark.parametrize(
    ("words", "tool", "other"),
    [("HIP", "rocm-smi", "nvidia-smi"), ("CUDA", "nvidia-smi", "rocm-smi")],
)
def test_the_tool_of_the_device_lists_its_processes(words: str, tool: str, other: str) -> None:
    found = _answer(f"torch.OutOfMemoryError: {HELD.format(words)}")
    assert found.causes[0].cause == "other_process"
    line = found.remedies[0].lines["shell"]
    assert tool in line and other not in line and line.endswith("kill 77120")


def test_the_largest_process_that_is_listed_is_named() -> None:
    listed = (ListedProcess(7, 10), ListedProcess(8, 30), ListedProcess(9, 20))
    assert device_values("xpu", "", (), listed)["processes"] == "xpu-smi ps; kill 8"
    assert device_values("xpu", "", (), ())["processes"].endswith("kill PID")


def test_a_build_of_a_vendor_has_its_own_variable() -> None:
    message = "NPU out of memory. Tried to allocate 1.45 GiB (NPU 3; 60.97 GiB total capacity)"
    values = device_values("cuda_caching_allocator", message, (), ())
    assert values["alloc_conf"] == "PYTORCH_NPU_ALLOC_CONF"
    assert not device_of("cuda_caching_allocator", message).quantizes
    assert device_of("cuda_caching_allocator", "CUDA out of memory").quantizes


def test_rocm_has_no_expandable_segments() -> None:
    found = _answer(SPLIT)
    assert found.causes[0].cause == "fragmentation"
    assert "expandable_segments" not in _keys(found)
    assert found.remedies[0].lines["shell"].startswith("export PYTORCH_HIP_ALLOC_CONF=garbage")


def test_the_limit_of_a_mac_is_lifted_only_with_its_risk() -> None:
    found = _answer(MPS)
    lifted = next(remedy for remedy in found.remedies if remedy.key == "mps_watermark")
    assert "risky" in (lifted.arithmetic or "")
    assert "bitsandbytes" not in _lines(found) and "nvidia-smi" not in _lines(found)


def test_workers_of_one_server_are_not_stopped() -> None:
    text = HELD.format("CUDA").replace("Process 77120 has 58.13 GiB memory in use. ", SERVED * 4)
    alone = _answer(f"torch.OutOfMemoryError: {text}")
    assert "stop_others" in _keys(alone)
    served = _answer(f"$ gunicorn app:app -w 8\ntorch.OutOfMemoryError: {text}")
    assert served.causes[0].cause == "other_process"
    assert _keys(served)[0] == "fewer_servers" and "stop_others" not in _keys(served)


def test_a_container_is_blamed_only_where_the_text_shows_one() -> None:
    bare = _answer("Process finished with exit code 137 (interrupted by signal 9: SIGKILL)")
    assert "container" not in (bare.causes[0].why or "")
    assert bare.causes[0].confidence == "medium"
    assert "more_limit" not in _keys(bare) and "docker" not in _lines(bare)
    pod = _answer("$ kubectl describe pod a\n    Reason:       OOMKilled\n    Exit Code:    137")
    assert "container" in (pod.causes[0].why or "")
    assert pod.remedies[0].key == "more_limit"
    assert [*pod.remedies[0].lines] == ["kubernetes"]


def test_a_refused_allocation_without_a_size_has_no_dash() -> None:
    found = _answer('  File "a.py", line 5, in <module>\n    x = pickle.load(f)\nMemoryError')
    assert found.causes[0].cause == "host_memory"
    assert " - " not in (found.causes[0].why or "")


def test_jax_is_known_where_it_prints_a_message_of_tensorflow() -> None:
    found = _answer(
        "bfc_allocator.cc:296] Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.00GiB\n"
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to "
        "allocate 2147483648 bytes."
    )
    assert found.framework == "jax"
    assert "TrainingArguments" not in _lines(found)
    assert any("jax" in remedy.lines for remedy in found.remedies)


def test_a_model_that_only_runs_gets_nothing_of_a_training() -> None:
    found = _answer(
        'Traceback (most recent call last):\n  File "t.py", line 5, in <module>\n'
        '    model = whisper.load_model("large")\n'
        '  File "/v/site-packages/whisper/__init__.py", line 154, in load_model\n'
        "    return model.to(device)\n"
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 26.00 MiB (GPU 0; 6.00 "
        "GiB total capacity; 5.24 GiB already allocated; 0 bytes free; 5.31 GiB reserved in total "
        "by PyTorch)"
    )
    assert found.framework == "whisper" and found.phase == "load"
    assert found.remedies[0].key == "smaller_model"
    assert "SFTConfig" not in _lines(found) and "TrainingArguments" not in _lines(found)


def test_a_library_without_figures_blames_no_other_process() -> None:
    found = _answer(
        'segments, info = WhisperModel("large-v3").transcribe("a.mp3")  # faster-whisper\n'
        "RuntimeError: CUDA failed with error out of memory"
    )
    assert found.causes[0].cause == "capacity"
    assert [remedy.key for remedy in found.remedies][:2] == ["smaller_input", "smaller_model"]


def test_a_script_that_extracts_features_does_not_train() -> None:
    found = _answer(
        'Traceback (most recent call last):\n  File "extract.py", line 33, in <module>\n'
        "    feats = model.get_image_features(**inputs)\n"
        '  File "/x/transformers/models/clip/modeling_clip.py", line 400, in forward\n'
        "    hidden_states = self.activation_fn(hidden_states)\n"
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a "
        "total capacty of 14.75 GiB of which 1.10 GiB is free."
    )
    assert not {"checkpointing", "lora", "smaller_batch"} & {*_keys(found)}
    assert _keys(found)[0] in ("no_grad", "smaller_input")


def test_a_tpu_is_no_gpu() -> None:
    """It was told to take a larger GPU, and host memory as CUDA shares it."""
    found = _answer(
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile error. "
        "Ran out of memory in memory space hbm. Used 37.91G of 15.75G hbm."
    )
    assert found.verdict.startswith("out of TPU memory")
    assert not {"bigger_card", "jax_unified"} & set(_keys(found))


OLD_AND_NEW = [("Tesla V100-SXM2-32GB", "float16"), ("v100", "float16"), ("T4", "float16")]
OLD_AND_NEW += [("A100", "bfloat16"), ("MI300X", "bfloat16")]


@pytest.mark.parametrize(("card", "type_"), OLD_AND_NEW)
def test_autocast_uses_a_type_that_the_card_has(card: str, type_: str) -> None:
    """A card without a compute capability, such as AMD's, is not taken to be old."""
    text = (
        f"GPU: {card}\n"
        '  File "train.py", line 71, in train\n    loss = criterion(model(images), targets)\n'
        '  File "/opt/lib/python3.10/site-packages/torch/nn/modules/loss.py", line 9, in forward\n'
        "    return F.cross_entropy(input, target)\n"
        "RuntimeError: CUDA out of memory. Tried to allocate 1.20 GiB (GPU 0; 31.75 GiB total "
        "capacity; 29.80 GiB already allocated; 0.62 GiB free; 30.70 GiB reserved in total by "
        "PyTorch)"
    )
    line = next(one for one in _lines(_answer(text)).splitlines() if "torch.autocast" in one)
    assert f"torch.{type_})" in line
    assert ("GradScaler" in line) is (type_ == "float16")
