"""Settings as logs tell them, and what only looks like one."""

from __future__ import annotations

import textwrap

import pytest

from oomdoctor.explain.reading.logged_settings import SettingsReader

HINT = (
    "1.87 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large "
    "try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See "
    "documentation for Memory Management"
)


def _read(text: str) -> SettingsReader:
    reader = SettingsReader()
    for line in text.split("\n"):
        reader.feed(line)
    return reader


@pytest.mark.parametrize("width", [30, 40, 55, 60, 72, 79, 100, 1000])
@pytest.mark.parametrize("prefix", ["", "> ", "[rank3]: ", "# "])
def test_the_hint_of_the_message_is_no_setting(width: int, prefix: str) -> None:
    for hint in (HINT, HINT.replace("PYTORCH_CUDA_", "PYTORCH_")):
        wrapped = "\n".join(prefix + line for line in textwrap.wrap(hint, width))
        assert _read(wrapped).settings == {}


@pytest.mark.parametrize(
    "text",
    [
        "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "PYTORCH_ALLOC_CONF=max_split_size_mb:128,expandable_segments:True python train.py",
        'os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"',
        'os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")',
        "{'PYTORCH_CUDA_ALLOC_CONF': 'expandable_segments:True'}",
        "I tried setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True and it still fails",
        HINT + "\nPYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    ],
)
def test_what_was_set_is_a_setting(text: str) -> None:
    assert "expandable_segments:True" in str(_read(text).settings["allocator"])


def test_the_type_in_a_call_of_quoted_code_is_not_the_models() -> None:
    code = "attn = nn.functional.softmax(attn, dim=-1, dtype=torch.float32).to(query.dtype)"
    assert _read(code).settings == {}
    load = 'model = AutoModel.from_pretrained("gpt2", dtype=torch.float32)'
    assert _read(load).settings["torch_dtype"] == "torch.float32"
    engine = "Initializing an LLM engine with config: model='x/y', dtype=torch.float16, seed=0"
    assert _read(engine).settings["torch_dtype"] == "torch.float16"


def test_settings_of_a_late_restart_are_read() -> None:
    late = "\n".join(["nothing"] * 20_001 + ["per_device_train_batch_size=8", "bf16=True"])
    assert _read(late).settings == {"per_device_train_batch_size": 8, "bf16": True}
    assert _read("\n".join(["nothing"] * 20_001 + ["bf16=True"])).settings == {}


@pytest.mark.parametrize(
    "code",
    [
        "    loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size)",
        "    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)",
        '    model = load(attn_implementation=os.environ.get("ATTN"))',
        "    partition = torch.empty(size, dtype=param.dtype)",
    ],
)
def test_an_expression_in_quoted_code_is_no_value(code: str) -> None:
    assert _read(code).settings == {}
    told = _read("vocab_size=32000\noptim=OptimizerNames.ADAFACTOR").settings
    assert told == {"vocab_size": 32000, "optim": "OptimizerNames.ADAFACTOR"}
