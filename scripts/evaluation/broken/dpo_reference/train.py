"""Full fine-tuning with DPO: the reference model stays on the GPU.

After https://github.com/hiyouga/LlamaFactory/issues/4810.
"""

from datasets import Dataset
from trl import DPOConfig, DPOTrainer

rows = Dataset.from_dict(
    {
        "prompt": ["Say something. " * 20] * 64,
        "chosen": ["good " * 300] * 64,
        "rejected": ["bad " * 300] * 64,
    }
)
args = DPOConfig(
    "out",
    per_device_train_batch_size=4,
    max_length=512,
    gradient_checkpointing=True,
    bf16=True,
    max_steps=12,
    save_strategy="no",
    report_to=[],
)
DPOTrainer("Qwen/Qwen2.5-0.5B", args=args, train_dataset=rows).train()
