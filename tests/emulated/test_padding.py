"""What a padded batch needs: simulated, on the emulated GPU, and as the page of `--from` says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from emulated_bench import Bench
from tiny_models import tiny_folder
from weekly_rows import weekly

ROOT = Path(__file__).parents[2]
LAYERS, ROWS, LENGTH, BF16 = 6, 4, 1024, 2
STEPS = f"""
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(vocab_size=512, hidden_size=512, intermediate_size=1024,
                     num_hidden_layers={LAYERS}, num_attention_heads=8, num_key_value_heads=8)
rows = torch.randint(0, 512, ({ROWS}, {LENGTH}), device="cuda")

def peak(model, mask):
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        model.zero_grad()
        model(input_ids=rows, attention_mask=mask, labels=rows, use_cache=False).loss.backward()
    return torch.cuda.max_memory_allocated()

full = torch.ones({ROWS}, {LENGTH}, dtype=torch.long)
padded = full.clone()
padded[1:, -100:] = 0
for name in ("plain", "checkpointed"):
    model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).train()
    if name == "checkpointed":
        model.gradient_checkpointing_enable({{"use_reentrant": False}})
    tell(**{{name: peak(model, padded.cuda()) - peak(model, full.cuda())}})
    del model
"""


@pytest.mark.slow
def test_sdpa_needs_a_mask_of_all_pairs_for_each_layer(
    cuda_python: Path, emulator_cache: Path, tmp_path: Path
) -> None:
    told = Bench(cuda_python, emulator_cache, tmp_path).run(STEPS)
    pairs = ROWS * LENGTH**2
    assert told["plain"] == pytest.approx(LAYERS * pairs * BF16, rel=1e-3)
    assert told["checkpointed"] == pytest.approx(pairs * (BF16 + 1), rel=1e-3)


RUNGS = (
    "method=full,padding=longest",
    "method=full,padding=longest,activation_checkpointing=full",
    "method=full,padding=longest,attention=eager",
    "method=lora,padding=max_length",
    "method=qlora,padding=longest",
    "method=full,padding=longest,sequence_length=61",
)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("card", "rungs"), [weekly("A100", RUNGS[:1]), ("H100", RUNGS)])
def test_simulated_padding_is_that_of_the_emulated_gpu(
    card: str,
    rungs: tuple[str, ...],
    cuda_python: Path,
    emulator_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(emulator_cache))
    model = str(tiny_folder(tmp_path / "model"))
    typed = [word for rung in rungs for word in ("--rung", rung)]
    sizes = ("--seq-len", "64", "--effective-batch", "8", "--micro-batch", "4")
    words = ("probe", model, "--emulate", card, "--recipe", "none", *typed, *sizes)
    ended = subprocess.run(
        [sys.executable, "-m", "oomdoctor", *words, "--python", cuda_python, "--json", "--quiet"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert len(found["results"]) == len(rungs)
    for result in found["results"]:
        assert (result["outcome"], result["evidence"]) == ("fits", "emulated")
        for peak in ("peak_allocated_bytes", "peak_reserved_bytes"):
            assert result[peak] == result["predicted"][peak], (result["label"], peak)
