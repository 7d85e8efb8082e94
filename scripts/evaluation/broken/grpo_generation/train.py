"""GRPO: eight prompts with eight long answers each, written by the model itself."""

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

rows = Dataset.from_dict({"prompt": ["Name a number. " * 60] * 128})
args = GRPOConfig(
    "out",
    per_device_train_batch_size=64,
    num_generations=8,
    max_completion_length=64,
    bf16=True,
    max_steps=4,
    save_strategy="no",
    report_to=[],
)


def reward(completions, **_):
    return [float(len(text)) for text in completions]


GRPOTrainer("HuggingFaceTB/SmolLM2-135M", reward, args, train_dataset=rows).train()
