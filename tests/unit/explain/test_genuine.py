"""Genuine tracebacks of libraries that the tests do not install, with their truth.

From runs of tiny models on the CPU: the stack at an allocating operator as Python prints it, with
the allocator's message below. The run itself knew the moment: autograd's state, hooks of the
optimizer, the function at work. Texts of launchers and of loggers are what the program printed
with the error raised, less what stood before the failure. Paths are made neutral.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from oomdoctor.explain.diagnose import diagnose
from oomdoctor.explain.reading.lines.stream import lines
from oomdoctor.explain.reading.scan import scan
from oomdoctor.explain.training.known import Given
from oomdoctor.units import GIB

TEXTS = Path(__file__).parents[2] / "data" / "explain" / "genuine"
# name of the text, phase, then the user's innermost line: file, line, function, start of its code
TABLE = [
    # transformers 4.57.6 with PEFT 0.21.2, bitsandbytes 0.50.2; all: torch 2.13.0, Python 3.11
    ("trainer4-load", "load", "train_trainer.py", 7, "<module>",
     "model = AutoModelForCausalLM.from_pretra"),
    ("trainer4-attention", "forward", "train_trainer.py", 36, "<module>", "trainer.train()"),
    ("trainer4-logits", "loss", "train_trainer.py", 36, "<module>", "trainer.train()"),
    ("trainer4-loss", "loss", "train_trainer.py", 36, "<module>", "trainer.train()"),
    ("trainer4-backward", "backward", "train_trainer.py", 36, "<module>", "trainer.train()"),
    ("trainer4-clip", "clip", "train_trainer.py", 36, "<module>", "trainer.train()"),
    ("trainer4-optimizer", "optimizer", "train_trainer.py", 36, "<module>", "trainer.train()"),
    ("trainer4-eval", "eval", "train_trainer.py", 37, "<module>", "trainer.evaluate()"),
    ("trainer4-eval-gather", "eval", "train_trainer.py", 37, "<module>", "trainer.evaluate()"),
    ("trainer4-reentrant", "backward", "train_trainer.py", 36, "<module>", "trainer.train()"),
    ("trainer4-recompute", "backward", "train_trainer.py", 36, "<module>", "trainer.train()"),
    ("trainer4-adafactor", "optimizer", "train_trainer.py", 36, "<module>", "trainer.train()"),
    ("peft-lora", "forward", "train_trainer.py", 36, "<module>", "trainer.train()"),
    ("qlora-load", "load", "train_qlora.py", 10, "<module>",
     "model = AutoModelForCausalLM.from_pretra"),
    ("qlora-forward", "forward", "train_qlora.py", 20, "<module>", "trainer.train()"),
    ("qlora-backward", "backward", "train_qlora.py", 20, "<module>", "trainer.train()"),
    ("vit4-forward", "forward", "train_seq2seq.py", 30, "run_vit", "trainer.train()"),
    # accelerate 1.15.0
    ("accelerate4-forward", "forward", "train_acc.py", 34, "main", "outputs = model(**batch)"),
    ("accelerate4-eval", "eval", "train_acc.py", 18, "evaluate", "outputs = model(**batch)"),
    # TRL 0.26.2 on transformers 4.57.6
    ("trl0-sft-forward", "forward", "train_sft.py", 24, "main", "trainer.train()"),
    ("trl0-sft-loss", "loss", "train_sft.py", 24, "main", "trainer.train()"),
    ("trl0-sft-backward", "backward", "train_sft.py", 24, "main", "trainer.train()"),
    ("trl0-dpo-logps", "loss", "train_dpo.py", 21, "<module>", "trainer.train()"),
    ("trl0-dpo-forward", "forward", "train_dpo.py", 21, "<module>", "trainer.train()"),
    ("trl0-dpo-reference", "init", "train_dpo.py", 17, "<module>", "trainer = DPOTrainer("),
    ("trl0-reward-forward", "forward", "train_reward.py", 15, "<module>", "trainer.train()"),
    ("trl0-kto-loss", "loss", "train_kto.py", 13, "<module>", "trainer.train()"),
    # TRL 1.16.0 on transformers 5.23.0
    ("trl1-sft-loss", "loss", "train_sft.py", 24, "main", "trainer.train()"),
    ("trl1-sft-eval", "eval", "train_sft.py", 24, "main", "trainer.train()"),
    ("trl1-dpo-loss", "loss", "train_dpo.py", 21, "<module>", "trainer.train()"),
    ("trl1-dpo-backward", "backward", "train_dpo.py", 21, "<module>", "trainer.train()"),
    ("trl1-grpo-generate", "generate", "train_grpo.py", 21, "<module>", "trainer.train()"),
    ("trl1-grpo-forward", "forward", "train_grpo.py", 21, "<module>", "trainer.train()"),
    ("trl1-grpo-loss", "loss", "train_grpo.py", 21, "<module>", "trainer.train()"),
    ("trl1-grpo-optimizer", "optimizer", "train_grpo.py", 21, "<module>", "trainer.train()"),
    ("trl1-reward-backward", "backward", "train_reward.py", 15, "<module>", "trainer.train()"),
    # lightning 2.6.6 on transformers 5.23.0
    ("lightning-forward", "forward", "train_light.py", 21, "training_step",
     "probs = torch.softmax(logits, -1)"),
    ("lightning-loss", "loss", "train_light.py", 22, "training_step",
     "loss = F.cross_entropy(probs[:, :-1].fla"),
    ("lightning-backward", "backward", "train_light.py", 41, "main",
     "trainer.fit(model, loader, loader)"),
    ("lightning-clip", "clip", "train_light.py", 41, "main", "trainer.fit(model, loader, loader)"),
    ("lightning-optimizer", "optimizer", "train_light.py", 41, "main",
     "trainer.fit(model, loader, loader)"),
    ("lightning-eval", "eval", "train_light.py", 27, "validation_step",
     "loss = self.model(input_ids=batch, label"),
    # pytorch_lightning 2.6.6 on transformers 4.57.6
    ("pytorch-lightning-forward", "forward", "train_light.py", 19, "training_step",
     "out = self.model(input_ids=batch)"),
    ("pytorch-lightning-optimizer", "optimizer", "train_light.py", 41, "main",
     "trainer.fit(model, loader, loader)"),
    # DeepSpeed 0.19.8 on transformers 4.57.6: ZeRO 2, ZeRO 3 (CPU accelerator)
    ("deepspeed-optimizer", "optimizer", "train_ds.py", 21, "main", "engine.step()"),
    ("deepspeed-forward", "forward", "train_ds.py", 19, "main",
     "loss = engine(input_ids=ids, labels=ids)"),
    ("trainer4-deepspeed-backward", "backward", "train_trainer_ds.py", 36, "<module>",
     "trainer.train()"),
    # accelerate lets DeepSpeed step within its backward
    ("trainer4-deepspeed-step", "optimizer", "train_trainer_ds.py", 36, "<module>",
     "trainer.train()"),
    # torchrun (torchelastic of torch 2.13.0, two gloo ranks), accelerate launch 1.15.0
    ("torchrun-fsdp-optimizer", "optimizer", "train_fsdp.py", 21, "<module>", "optimizer.step()"),
    ("torchrun-fsdp2-backward", "backward", "train_fsdp.py", 19, "<module>", "loss.backward()"),
    ("accelerate-launch-clip", "clip", "train_acc.py", 38, "main",
     "accelerator.clip_grad_norm_(model.parame"),
    # as programs show it: rich 15.0.0 at 80 columns, logging, IPython 9.18.1, mp.spawn, tqdm
    ("rich-logits", "loss", "train_plain.py", 20, "train_step", "outputs = model(input_ids=batch)"),
    ("json-lines-forward", "forward", "train_plain.py", 20, "train_step",
     "outputs = model(input_ids=batch)"),
    ("logger-optimizer", "optimizer", "train_plain.py", 27, "train_step", "optimizer.step()"),
    ("chained-clip", "clip", "train_plain.py", 26, "train_step",
     "torch.nn.utils.clip_grad_norm_(model.par"),
    ("notebook-backward", "backward", "Cell In[1]", 25, "train_step", "(loss / 2).backward()"),
    ("notebook-colours-loss", "loss", "Cell In[1]", 24, "train_step",
     "loss = torch.nn.functional.cross_entropy"),
    ("spawn-backward", "backward", "train_plain.py", 25, "train_step", "(loss / 2).backward()"),
    ("tqdm-generate", "generate", "train_plain.py", 46, "main",
     "model.generate(get_batch()[:, :4], max_n"),
    # Python 3.13 with FORCE_COLOR=1, transformers 5.23.0
    ("python313-colours-loss", "loss", "train_plain.py", 22, "train_step",
     "shift_logits = logits[..., :-1, :].conti"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "phase", "file", "line", "function", "code"), TABLE)
def test_phase_figures_and_the_users_line(name, phase, file, line, function, code):
    incident = scan(lines([(TEXTS / f"{name}.txt").read_bytes()]))[0][0]
    assert (incident.event.dialect, incident.resource) == ("cuda_caching_allocator", "gpu")
    assert incident.event.requested_bytes == round(1.96 * GIB)
    assert incident.phase == phase
    where = incident.where
    assert where is not None
    assert (where.file.removeprefix("/home/user/"), where.line) == (file, line)
    assert where.function == function
    assert (where.code or "").startswith(code)
    assert not incident.survived


@pytest.mark.parametrize(
    ("name", "rank"), [("torchrun-fsdp-optimizer", 1), ("trl0-sft-loss", None)]
)
def test_the_rank_that_failed(name, rank):
    assert scan(lines([(TEXTS / f"{name}.txt").read_bytes()]))[0][0].rank == rank


@pytest.mark.parametrize(
    "name", [row[0] for row in TABLE if row[0].startswith("trl") and row[1] != "optimizer"]
)
def test_trl_is_told_from_its_frames(name):
    incidents, facts = scan(lines([(TEXTS / f"{name}.txt").read_bytes()]))
    assert diagnose("log", incidents, facts, Given())[0].framework == "trl"


@pytest.mark.parametrize(
    ("name", "recomputing"),
    [
        ("trainer4-recompute", True),
        ("trainer4-reentrant", True),
        ("trl0-sft-backward", True),
        ("trainer4-backward", False),
        ("trainer4-attention", False),
    ],
)
def test_a_backward_pass_that_recomputes(name, recomputing):
    assert scan(lines([(TEXTS / f"{name}.txt").read_bytes()]))[0][0].recomputing is recomputing


def test_each_text_has_its_truth():
    assert sorted(row[0] for row in TABLE) == sorted(path.stem for path in TEXTS.glob("*.txt"))


def test_the_texts_name_only_neutral_folders():
    files = [path for path in TEXTS.parent.rglob("*") if path.is_file()]
    named = [
        (path.name, place)
        for path in files
        for place in re.findall(r"[\"' =(](/\w+/[\w.-]+)", path.read_text(encoding="utf-8"))
    ]
    assert len(named) > 1000
    neutral = ("/home/me", "/home/user", "/opt/env", "/usr/bin", "/usr/lib")
    assert [one for one in named if one[1] not in neutral] == []
