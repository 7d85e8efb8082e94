"""The table of each program, by the name of its format."""

from __future__ import annotations

from oomdoctor.records.user_training import FormatName
from oomdoctor.stacks.names.axolotl import AXOLOTL
from oomdoctor.stacks.names.engines.accelerate import ACCELERATE
from oomdoctor.stacks.names.engines.deepspeed import DEEPSPEED
from oomdoctor.stacks.names.llama_factory import LLAMA_FACTORY
from oomdoctor.stacks.names.row import Table, listed
from oomdoctor.stacks.names.scripts import SCRIPT
from oomdoctor.stacks.names.torchtune import TORCHTUNE
from oomdoctor.stacks.names.transformers import ARGUMENTS, LENGTH
from oomdoctor.stacks.names.trl import MODEL_CONFIG, SFT_CONFIG, TRL

# A Trainer's script has arguments for the model as well, mostly with the names that TRL uses.
_SCRIPT = Table(
    MODEL_CONFIG.rows,
    MODEL_CONFIG.neutral
    | SFT_CONFIG.neutral
    | listed(
        """
        dataset_config_name train_file validation_file test_file preprocessing_num_workers
        overwrite_cache max_train_samples max_eval_samples max_predict_samples tokenizer_name
        validation_split_percentage use_fast_tokenizer cache_dir low_cpu_mem_usage token
        keep_linebreaks text_column summary_column source_prefix ignore_pad_token_for_loss
        """
    ),
    MODEL_CONFIG.reasons,
    {"use_peft": False},
)
TRAINER = _SCRIPT | LENGTH | ARGUMENTS

TABLES: dict[FormatName, Table] = {
    "trainer": TRAINER,
    "trl": TRL,
    "accelerate": ACCELERATE,
    "deepspeed": DEEPSPEED,
    "axolotl": AXOLOTL,
    "llama-factory": LLAMA_FACTORY,
    "torchtune": TORCHTUNE,
}
# Programs that only have scripts; those of the others are read with SCRIPT as well.
_LOOP = TRAINER | SCRIPT | Table((), defaults={"micro_batch_size": 1}, source="no more is said")
SCRIPTED: dict[FormatName, Table] = {
    "trainer": TRAINER | SCRIPT,
    "trl": TRL | SCRIPT,
    "pytorch": _LOOP,
    "unsloth": TRL | SCRIPT,
}
# Programs that only start or shard a training that another file describes.
LAUNCHERS: frozenset[FormatName] = frozenset({"accelerate", "deepspeed"})


def table_of(path: str, program: FormatName) -> Table | None:
    """The table of a file; None for a program whose files of this kind are not read."""
    return (SCRIPTED if path.endswith(".py") else TABLES).get(program)
