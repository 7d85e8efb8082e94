"""The names in training scripts that tell what a call or a constant is about."""

from __future__ import annotations

from oomdoctor.stacks.scripts.model import BUILT

# The configurations of TRL's trainers -> what they train for.
TRL_CONFIGS = {
    "SFTConfig": "default",
    "DPOConfig": "dpo",
    "RewardConfig": "reward",
    "GRPOConfig": "grpo",
}
TRL_TRAINERS = tuple(f"{name.removesuffix('Config')}Trainer" for name in TRL_CONFIGS)
# Other trainers of TRL, whose steps a rung does not have.
OTHER_CONFIGS = frozenset(
    f"{name}Config"
    for name in ("BCO", "CPO", "GKD", "KTO", "NashMD", "ORPO", "OnlineDPO", "PPO", "PRM", "RLOO",
                 "XPO")
)  # fmt: skip
TRL_CLASSES = frozenset((*TRL_CONFIGS, *TRL_TRAINERS)) | OTHER_CONFIGS
UNSLOTH_CLASSES = frozenset({"FastLanguageModel", "FastModel", "FastVisionModel"})
# What reads the arguments of a command line.
PARSERS = frozenset({"HfArgumentParser", "TrlParser", "ArgumentParser"})
MODEL_NAMES = ("ForCausalLM", "ForMaskedLM", "ForSequenceClassification", "ForSeq2SeqLM",
               "ForImageTextToText", "ForConditionalGeneration", "Model")  # fmt: skip
LORA = {
    "r": "lora_r",
    "target_modules": "lora_target_modules",
}
# A class -> the optimizer that the Trainer calls by this name.
OPTIMIZERS = {built.source.split(":")[1]: name for name, built in BUILT.items()} | {
    "Adam": "adamw_torch",
    "Adam8bit": "adamw_bnb_8bit",
}
