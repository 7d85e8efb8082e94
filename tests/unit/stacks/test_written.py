"""What is printed to change a training, when done, makes `--from` read the changed training."""

from __future__ import annotations

import ast
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.report.user_training import AddedCode, UserTraining
from oomdoctor.stacks.reading.finish import Overrides, finished
from oomdoctor.stacks.reading.merge import draft_of
from oomdoctor.stacks.reading.python_values import name_of
from oomdoctor.stacks.writing.patch import NotPatchedError, Written, edit_of, patched, written
from oomdoctor.system.training_files import read_documents

FILES = Path(__file__).parents[2] / "data" / "stacks" / "files"
TRAINER = """\
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

base = AutoModelForCausalLM.from_pretrained("org/m", torch_dtype="bfloat16")
args = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=8,
    bf16=True,
)
trainer = Trainer(model=base, args=args, train_dataset=None)
"""
SFT = """\
from trl import ModelConfig, SFTConfig, SFTTrainer, TrlParser

(options,) = TrlParser((ModelConfig,)).parse_args_and_config()
args = SFTConfig(output_dir="out", per_device_train_batch_size=8, max_length=2048,
                 gradient_checkpointing=False)
trainer = SFTTrainer(model="org/m", args=args, train_dataset=None)
"""
ADAPTED = """\
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

model = AutoModelForCausalLM.from_pretrained("org/m", dtype="bfloat16")
args = SFTConfig("out", per_device_train_batch_size=4, optim="adamw_torch_fused", max_length=1024)
peft_config = LoraConfig(r=64, lora_alpha=16, target_modules="all-linear")
trainer = SFTTrainer(model, args=args, peft_config=peft_config)
"""
LOOP = """\
import argparse

import torch
from transformers import AutoModelForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--seq-len", type=int, default=1024)
args = parser.parse_args()
model = AutoModelForCausalLM.from_pretrained("org/m", dtype=torch.bfloat16).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
for batch in batches(args.batch_size, args.seq_len):
    model(**batch).loss.backward()
    optimizer.step()
"""
ONE_LINE = """\
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("org/m")
args = TrainingArguments("out", per_device_train_batch_size=8, gradient_accumulation_steps=1)
Trainer(model=model, args=args).train()
"""
SCRIPTS = {"trainer.py": TRAINER, "sft.py": SFT, "adapted.py": ADAPTED, "loop.py": LOOP}
LEANER: dict[str, dict[str, Any]] = {
    "micro-batch": {"micro_batch_size": 1},
    "checkpointing": {"activation_checkpointing": "full"},
    "liger": {"loss": "liger"},
    "paged": {"optimizer": "paged_adamw_8bit"},
    "lora": {"method": "lora", "lora_rank": 8},
    "qlora": {
        "method": "qlora", "quantization": "nf4", "kbit_prepare": "none", "lora_rank": 8,
        "micro_batch_size": 1,
    },
    "attention": {"attention": "flash_attention_2"},
    "dtype": {"weights_dtype": "float16"},
}  # fmt: skip


def read(path: Path, **options: int) -> UserTraining:
    return finished(draft_of(read_documents([str(path)])), dict, Overrides(**options))


def pasted(text: str, code: AddedCode) -> str:
    """The script with the code where it says that it belongs."""
    lines = text.split("\n")
    assert code.line is None or code.line <= len(lines)
    if code.place == "around":
        return "\n".join([*code.imports, *lines, code.code, "    pass"])
    assert code.line is not None
    if code.place == "below":
        lines[code.line : code.line] = [*code.imports, code.code]
        return "\n".join(lines)
    call = next(
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and node.lineno == code.line
        if f" {name_of(node.func)}(" in code.where
    )
    source = ast.get_source_segment(text, call)
    assert source is not None and source.endswith(")")
    new = code.code if code.place == "instead" else f"{source[:-1].rstrip(', ')}, {code.code})"
    return "\n".join([*code.imports, text.replace(source, new)])


def done(path: Path, text: str, change: Written) -> str:
    """The file with everything that is said to change; code first, as its lines are the user's."""
    for code in sorted(change.code, key=lambda one: -(one.line or 10**6)):
        imports, code = code.imports, replace(code, imports=())
        text = pasted(text, code)
        compile("\n".join([*imports, text]), path.name, "exec")
    text = patched(str(path), text, [edit_of(line) for line in change.lines])
    compile(text, path.name, "exec")
    return text


def wanted(config: TrainConfig, changes: dict[str, Any]) -> TrainConfig:
    after = replace(config, **changes)
    return after if after.effective_batch_size % int(after.micro_batch_size) == 0 else config


@pytest.mark.parametrize("change", LEANER)
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_that_is_changed_as_printed_says_the_change(
    tmp_path: Path, name: str, change: str
) -> None:
    path = tmp_path / name
    path.write_text(SCRIPTS[name])
    training = read(path)
    after = wanted(training.config, LEANER[change])
    if after.method == "qlora" and name in ("trainer.py", "loop.py"):
        after = replace(after, kbit_prepare="peft")  # what is read of a script without TRL
    said = written(training, after, {str(path): SCRIPTS[name]})
    assert said.lines or said.code or after == training.config
    for line in said.lines:
        assert line.text and (line.call is None or line.call in SCRIPTS[name])
    path.write_text(done(path, SCRIPTS[name], said))
    ours = read(path).config
    # What adapters of quantized weights are cast to is TRL's choice.
    assert ours == replace(after, adapter_dtype=ours.adapter_dtype)


@pytest.mark.parametrize("text", [*SCRIPTS.values(), ONE_LINE])
def test_a_line_with_several_changes_is_shown_as_it_is_after_all_of_them(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "train.py"
    path.write_text(text)
    training = read(path)
    changes = {"micro_batch_size": 1, "effective_batch_size": 8, "optimizer": "paged_adamw_8bit"}
    said = written(training, replace(training.config, **changes), {str(path): text})
    after = patched(str(path), text, [edit_of(line) for line in said.lines])
    stripped = [line.strip().rstrip(",") for line in after.split("\n")]
    whole = {line.text for line in said.lines if line.call is None}
    assert whole and whole <= set(stripped)
    added = [line.text for line in said.lines if line.call is not None]
    assert not [one for one in added if any(str(one) in str(line) for line in whole)]


def test_a_plain_script_has_objects_and_no_options_of_trl(tmp_path: Path) -> None:
    path = tmp_path / "trainer.py"
    path.write_text(TRAINER)
    training = read(path)
    after = replace(training.config, **LEANER["qlora"])
    said = written(training, after, {str(path): TRAINER})
    assert [line.text for line in said.lines] == [
        "per_device_train_batch_size=1",
        "gradient_accumulation_steps=8",
    ]
    assert said.lines[1].call == "TrainingArguments"
    adapter, weights = said.code
    assert (adapter.place, adapter.line) == ("below", 3)
    assert adapter.imports == ("from peft import LoraConfig, get_peft_model",)
    assert adapter.code.startswith("base = get_peft_model(")
    assert (weights.place, weights.line) == ("keyword", 3)
    assert weights.where == "as a keyword of AutoModelForCausalLM.from_pretrained(...)"
    assert weights.code.startswith("quantization_config=BitsAndBytesConfig(")


@pytest.mark.parametrize("name", ["sft.yaml", "axolotl_qlora.yml", "trainer.yaml"])
def test_what_no_setting_says_is_refused(name: str) -> None:
    training = read(FILES / name)
    after = replace(training.config, optimizer_in_backward=True, optimizer="sgd")
    with pytest.raises(NotPatchedError, match="no setting for optimizer_in_backward"):
        written(training, after, {})


def test_what_a_script_cannot_say_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trainer.py"
    path.write_text(TRAINER.replace("bf16=True", "bf16=FAST"))
    training = read(path)
    mixed = replace(training, config=replace(training.config, autocast_dtype="bfloat16"))
    with pytest.raises(NotPatchedError, match="turns on autocast in code"):
        written(mixed, training.config, {str(path): path.read_text()})


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("axolotl_qlora.yml", {"micro_batch_size": 1}),
        ("axolotl_qlora.yml", {"loss": "default"}),
        ("axolotl_qlora.yml", {"attention": "sdpa"}),
        ("axolotl_qlora.yml", {"optimizer": "paged_adamw_8bit", "lora_rank": 8}),
        ("llamafactory_lora.yaml", {"activation_checkpointing": "none"}),
        ("torchtune_lora.yaml", {"activation_checkpointing": "none"}),
        ("sft.yaml", {"micro_batch_size": 1, "sequence_length": 1024}),
        ("trainer.yaml", {"activation_checkpointing": "none"}),
    ],
)
def test_a_file_that_is_changed_as_printed_says_the_change(
    tmp_path: Path, name: str, changes: dict[str, Any]
) -> None:
    path = tmp_path / name
    shutil.copy(FILES / name, path)
    training = read(path)
    after = replace(training.config, **changes)
    said = written(training, after, {})
    assert said.lines and not said.code
    path.write_text(patched(str(path), path.read_text(), [edit_of(line) for line in said.lines]))
    assert read(path).config == after


def test_deepspeeds_file_is_changed_as_printed(tmp_path: Path) -> None:
    for name in ("trainer.yaml", "ds_zero2_offload.json"):
        shutil.copy(FILES / name, tmp_path / name)
    paths = [str(tmp_path / name) for name in ("trainer.yaml", "ds_zero2_offload.json")]
    training = finished(draft_of(read_documents(paths)), dict, Overrides(gpus=2))
    after = replace(training.config, sharding="zero3")
    for line in written(training, after, {}).lines:
        assert line.file is not None
        file = Path(line.file)
        file.write_text(patched(line.file, file.read_text(), [edit_of(line)]))
    again = finished(draft_of(read_documents(paths)), dict, Overrides(gpus=2))
    assert again.config == after
