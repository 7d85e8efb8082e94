"""A rung as a configuration of torchtune's fine-tuning recipes."""

from __future__ import annotations

from oomdoctor.records.config import TrainConfig
from oomdoctor.stacks.names.torchtune import builder_of
from oomdoctor.stacks.rung import StackRung, learning_rate, not_in
from oomdoctor.stacks.writing.file import yaml_file
from oomdoctor.stacks.writing.lost import settings_of

# By the room of a model's builder: its tokenizer, the tokenizer's files, and its model_type.
_TOKENIZERS = {
    "llama2": ("llama2.llama2_tokenizer", {"path": "tokenizer.model"}, "LLAMA2"),
    "code_llama2": ("llama2.llama2_tokenizer", {"path": "tokenizer.model"}, "LLAMA2"),
    "llama3": ("llama3.llama3_tokenizer", {"path": "original/tokenizer.model"}, "LLAMA3"),
    "llama3_1": ("llama3.llama3_tokenizer", {"path": "original/tokenizer.model"}, "LLAMA3"),
    "llama3_2": ("llama3.llama3_tokenizer", {"path": "original/tokenizer.model"}, "LLAMA3_2"),
    "llama3_3": ("llama3.llama3_tokenizer", {"path": "original/tokenizer.model"}, "LLAMA3"),
    "qwen2": ("qwen2.qwen2_tokenizer",
              {"path": "vocab.json", "merges_file": "merges.txt"}, "QWEN2"),
    "qwen2_5": ("qwen2_5.qwen2_5_tokenizer",
                {"path": "vocab.json", "merges_file": "merges.txt"}, "QWEN2"),
    "gemma": ("gemma.gemma_tokenizer", {"path": "tokenizer.model"}, "GEMMA"),
    "gemma2": ("gemma.gemma_tokenizer", {"path": "tokenizer.model"}, "GEMMA2"),
    "mistral": ("mistral.mistral_tokenizer", {"path": "tokenizer.model"}, "MISTRAL"),
    "phi3": ("phi3.phi3_mini_tokenizer", {"path": "tokenizer.model"}, "PHI3_MINI"),
    "phi4": ("phi4.phi4_tokenizer",
             {"vocab_path": "vocab.json", "merges_path": "merges.txt"}, "PHI4"),
}  # fmt: skip


def render(rung: StackRung) -> str:
    """The YAML file. Paths, data set and learning rate are examples to replace.

    Raises:
        OomDoctorError: torchtune has no such model, optimizer or objective (exit 3).
    """
    config = rung.config
    if config.objective != "default":
        raise not_in("torchtune", f"objective = {config.objective}", "use --to trl or --to axolotl")
    builder = builder_of(config, rung.model)
    if builder is None:
        raise not_in("torchtune", f"the model {rung.model}", "use --to trl or --to axolotl")
    settings = settings_of(config, "torchtune")
    if "_component_" not in settings.get("optimizer", {}):
        raise not_in("torchtune", f"the optimizer {config.optimizer}")
    folder = f"/tmp/{rung.model.rpartition('/')[2]}"
    tokenizer, files, kind = _TOKENIZERS[builder.split(".")[2]]
    settings["model"] = {"_component_": builder} | settings.get("model", {})
    settings["tokenizer"] = (
        {"_component_": f"torchtune.models.{tokenizer}"}
        | {name: f"{folder}/{file}" for name, file in files.items()}
        | settings.get("tokenizer", {})
    )
    settings["optimizer"] |= {"lr": learning_rate(config)}
    settings["dataset"] = {"_component_": "torchtune.datasets.alpaca_dataset"} | settings["dataset"]
    settings |= _rest(folder, kind)
    return yaml_file(rung, "torchtune", "torchtune", _command(config), settings)


def _rest(folder: str, kind: str) -> dict[str, object]:
    return {
        "output_dir": "./outputs",
        "checkpointer": {
            "_component_": "torchtune.training.FullModelHFCheckpointer",
            "checkpoint_dir": folder,
            "checkpoint_files": ["model.safetensors"],  # the files of that folder
            "recipe_checkpoint": None,
            "output_dir": "./outputs",
            "model_type": kind,
        },
        "resume_from_checkpoint": False,
        "seed": None,
        "shuffle": True,
        "epochs": 1,
        "max_steps_per_epoch": None,
        "loss": {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"},
        "device": "cuda",
        "metric_logger": {
            "_component_": "torchtune.training.metric_logging.DiskLogger",
            "log_dir": "./outputs/logs",
        },
        "log_every_n_steps": 1,
        "log_peak_memory_stats": True,
    }


def _command(config: TrainConfig) -> str:
    kind = "full" if config.method == "full" else "lora"
    if config.world_size == 1:
        return f"tune run {kind}_finetune_single_device --config train.yaml"
    gpus = f"--nproc_per_node {config.world_size}"
    return f"tune run {gpus} {kind}_finetune_distributed --config train.yaml"
