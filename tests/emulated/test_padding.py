"""What a padded batch needs more than a full one, as the page of `--from` says it."""

from __future__ import annotations

from pathlib import Path

import pytest
from emulated_bench import Bench

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
