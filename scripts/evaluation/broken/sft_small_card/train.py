"""LoRA of a model with 0.5 billion parameters on a card with 4 GB.

After https://github.com/huggingface/trl/issues/2819.
"""

from datasets import Dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

rows = Dataset.from_dict({"text": ["word " * 1500] * 64})
args = SFTConfig(
    "out",
    per_device_train_batch_size=4,
    gradient_accumulation_steps=1,
    gradient_checkpointing=False,
    max_length=512,
    bf16=True,
    max_steps=12,
    save_strategy="no",
    report_to=[],
)
SFTTrainer(
    "Qwen/Qwen2.5-0.5B",
    args=args,
    train_dataset=rows,
    peft_config=LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"),
).train()
