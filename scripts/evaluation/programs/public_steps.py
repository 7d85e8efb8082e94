"""Run what a file of published rates timed twice each, as its public code does.

    python public_steps.py ROWS NOTES

The rows are those of timm's benchmark.py, of ryujaehun's pytorch-gpu-benchmark and of scripts like
them: training steps of models of timm and of torchvision; those of mli's transformers-benchmarks:
single layers; and those of stas00's torch-compile-bench.py: forward passes. Runs on the emulated
GPU, with what it launches noted. Copies the notes of this process to the folder NOTES, with
`cases.jsonl`: the id of each row, its batch and the number of its second step, or why it did not
run. All rows share an optimizer object, so that the steps of all rows are counted.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision
from transformers import AutoConfig, AutoModelForCausalLM, BertConfig, T5Config
from transformers.models.bert.modeling_bert import BertLayer
from transformers.models.t5.modeling_t5 import T5Block

# benchmark.py begins with the first and takes this many images less until a batch fits.
_BATCH, _LESS = 256, 32
# Of one row of many, such as a model that the installed libraries lack.
_FAULTS = (AttributeError, KeyError, RuntimeError, TypeError, ValueError)
_SET_TO_NONE = (2, 0)  # the release from which zero_grad drops gradients
_NEWER = (8, 9)  # cards that need a release like that


class _Steps:
    """The optimizer of all rows, and how many steps it took."""

    def __init__(self) -> None:
        self.optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.01, momentum=0.9)
        self.taken = 0

    def begin(self, parameters: list[torch.nn.Parameter]) -> None:
        """Forget other models; without parameters, a step updates nothing."""
        self.optimizer.state.clear()
        self.optimizer.param_groups.clear()
        self.optimizer.add_param_group({"params": parameters or [torch.nn.Parameter()]})

    def end(self) -> None:
        """Update."""
        self.optimizer.step()
        self.taken += 1


def main(rows: Path, notes: Path) -> None:
    """Run all rows, then copy the notes."""
    torch.backends.cudnn.benchmark = True
    steps = _Steps()
    with (notes / "cases.jsonl").open("w") as cases:
        for line in rows.read_text().splitlines():
            row = json.loads(line)
            case: dict[str, Any] = {"id": row["id"]}
            try:
                case |= {"batch": _steps(row, steps), "step": steps.taken}
            except _FAULTS as error:
                case["error"] = f"{type(error).__name__}: {error}".partition("\n")[0]
            cases.write(json.dumps(case) + "\n")
            cases.flush()
    for file in Path(os.environ["OOMDOCTOR_EMULATED_LAUNCHES"]).glob(f"*-{os.getpid()}"):
        shutil.copy(file, notes / file.name.partition("-")[0])


def _steps(row: dict[str, Any], steps: _Steps) -> int:
    """Two steps at the batch of the row, or at the largest that fits its card. Returns it."""
    prepare = next(prepare for words, prepare in _PREPARED if row["model"].startswith(words))
    batch = row.get("micro_batch") or _BATCH
    while True:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        step = prepare(row, batch, steps)
        for _ in range(2):
            step()
            steps.end()
        if "micro_batch" in row or torch.cuda.max_memory_reserved() <= row["memory_bytes"]:
            return batch
        batch -= _LESS


def _of_images(row: dict[str, Any], batch: int, steps: _Steps) -> Callable[[], None]:
    """A training step of a new model."""
    library, _, name = row["model"].partition("/")
    is_timm = library == "timm"
    torch.backends.cuda.matmul.allow_tf32 = is_timm  # as benchmark.py sets it
    model = timm.create_model(name) if is_timm else getattr(torchvision.models, name)()
    for module in model.modules():
        if hasattr(module, "fused_attn") and row["group"] == "timm":
            module.fused_attn = False  # timm had no fused attention when the rows were measured
    weights, autocast = row["precision"]["weights"], row["precision"].get("autocast")
    dtype = torch.float16 if weights.startswith("float16") else torch.float32
    layout = (
        torch.channels_last if row.get("kernels") == "channels_last" else torch.contiguous_format
    )
    model = model.to("cuda", dtype).to(memory_format=layout)
    size = row.get("image_size") or model.default_cfg["input_size"][-1]
    on_host = "H2D" in row["method"] or "host tensor" in row.get("data", "")
    images = torch.randn(batch, 3, size, size, dtype=dtype, device="cpu" if on_host else "cuda")
    images = images.contiguous(memory_format=layout)
    classes = torch.randint(0, 1000, (batch,), device="cuda")
    updates = "no optimizer" not in row["method"].lower()
    steps.begin(list(model.parameters()) if updates else [])

    def step() -> None:
        model.zero_grad(set_to_none=_drops_gradients(row))
        with torch.autocast("cuda", torch.float16) if autocast else nullcontext():
            loss = torch.nn.functional.cross_entropy(model(images.to("cuda")), classes)
        loss.backward()

    return step


def _of_a_layer(row: dict[str, Any], batch: int, steps: _Steps) -> Callable[[], None]:
    """One or both passes of a layer in training."""
    torch.backends.cuda.matmul.allow_tf32 = False
    if row["model"].startswith("BertLayer"):
        bert = BertConfig(hidden_size=1024, num_attention_heads=16, intermediate_size=4096)
        bert._attn_implementation = "eager"
        layer = BertLayer(bert)
    else:
        t5 = T5Config(d_model=1024, num_heads=16, d_ff=4096, d_kv=64)
        t5._attn_implementation = "eager"
        layer = T5Block(t5)
    layer = layer.to("cuda", torch.float16)
    size = (batch, row["seq_len"], 1024)
    states = torch.randn(size, dtype=torch.float16, device="cuda", requires_grad=True)
    backward = "bwd" in row["method"]
    steps.begin([])

    def step() -> None:
        result = layer(states)
        if backward:
            (result[0] if isinstance(result, tuple) else result).sum().backward()

    return step


def _of_inference(row: dict[str, Any], batch: int, steps: _Steps) -> Callable[[], None]:
    """A forward pass without gradients."""
    config = AutoConfig.for_model(**row["config"])
    with torch.device("meta"):  # on the emulated GPU, weights have no values
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation="sdpa"
        )
    model = model.to_empty(device="cuda").eval()
    tokens = torch.zeros(batch, row["seq_len"], dtype=torch.int64, device="cuda")
    steps.begin([])

    def step() -> None:
        with torch.no_grad():
            model(input_ids=tokens)

    return step


_PREPARED = [
    (("timm/", "torchvision/"), _of_images),
    (("BertLayer", "T5Block"), _of_a_layer),
    (("",), _of_inference),
]


def _drops_gradients(row: dict[str, Any]) -> bool:
    """Whether zero_grad sets gradients to None, as the release of the row does by default.

    Rows that do not name one ran on a release that supports their card.
    """
    said = (row.get("versions") or {}).get("torch")
    if said is None:
        return tuple(row["capability"]) >= _NEWER
    major, minor = said.split()[0].split(".")[:2]
    return (int(major), int(minor)) >= _SET_TO_NONE


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
