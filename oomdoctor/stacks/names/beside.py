"""Settings that no rung has, because they change neither memory nor speed of a training step.

`export --from` carries them from one program to another, and `explain` reads some of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from oomdoctor.records.user_training import FormatName

Scalar = str | int | float
# Only these settings of a training stand in a launcher's file.
_OF_LAUNCHERS: Mapping[str, frozenset[str]] = {
    "accelerate": frozenset(),
    "deepspeed": frozenset({"max_grad_norm"}),
}
# The words of transformers for schedules, which the other programs share.
_SCHEDULES = frozenset(
    {"linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup",
     "inverse_sqrt", "reduce_lr_on_plateau", "cosine_with_min_lr", "warmup_stable_decay"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Beside:
    """A setting with the same meaning in several programs: `name` is transformers' name.

    `others` are the names of programs that call it otherwise; None if a program does not
    have it. `aliases` are read, never written. `objective` is the one that it belongs to, and
    `words` are the values that all programs have.
    """

    key: str
    name: str
    others: Mapping[FormatName, str | None] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    objective: str | None = None
    words: frozenset[str] = frozenset()

    def name_in(self, program: FormatName) -> str | None:
        """What a program calls it; None if it has no such setting."""
        if program in _OF_LAUNCHERS and self.key not in _OF_LAUNCHERS[program]:
            return None
        return self.others.get(program, self.name)

    def all_names(self) -> Iterator[str]:
        """The names of all programs, the most usual first."""
        found = (self.name, *self.others.values(), *self.aliases)
        yield from dict.fromkeys(name for name in found if name is not None)

    def value(self, told: object) -> Scalar | None:
        """The value, with numbers that YAML reads as text, such as 1e-5, as numbers. None if other
        programs do not have it.
        """
        if isinstance(told, str) and not self.words and self.key != "output_dir":
            try:
                number = float(told)
            except ValueError:
                return None
            return int(number) if number == int(number) else number
        if not isinstance(told, str | int | float) or (self.words and told not in self.words):
            return None
        return told


_NOT_IN_TUNE: Mapping[FormatName, str | None] = {"torchtune": None}
BESIDE: tuple[Beside, ...] = (
    Beside("learning_rate", "learning_rate", {"torchtune": "optimizer.lr"}),
    Beside("epochs", "num_train_epochs", {"axolotl": "num_epochs", "torchtune": "epochs"}),
    Beside("max_steps", "max_steps", _NOT_IN_TUNE),
    Beside("warmup_steps", "warmup_steps", _NOT_IN_TUNE),
    # transformers 5 has one name: a number below 1 is a share of all steps.
    Beside("warmup_ratio", "warmup_ratio",
           {"trainer": "warmup_steps", "trl": "warmup_steps", "torchtune": None}),
    Beside("schedule", "lr_scheduler_type", {"axolotl": "lr_scheduler", "torchtune": None},
           words=_SCHEDULES),
    Beside("weight_decay", "weight_decay", {"torchtune": "optimizer.weight_decay"}),
    Beside("adam_beta1", "adam_beta1", _NOT_IN_TUNE),
    Beside("adam_beta2", "adam_beta2", _NOT_IN_TUNE),
    Beside("adam_epsilon", "adam_epsilon", {"torchtune": "optimizer.eps"}),
    Beside("max_grad_norm", "max_grad_norm",
           {"torchtune": "clip_grad_norm", "deepspeed": "gradient_clipping"}),
    Beside("seed", "seed"),
    Beside("logging_steps", "logging_steps", {"torchtune": "log_every_n_steps"}),
    Beside("output_dir", "output_dir"),
    Beside("beta_of_dpo", "beta",
           {"trainer": None, "axolotl": "rl_beta", "llama-factory": "pref_beta",
            "torchtune": "loss.beta"}, objective="dpo"),
    Beside("beta_of_grpo", "beta",
           {"trainer": None, "axolotl": "trl.beta", "llama-factory": None, "torchtune": None},
           objective="grpo"),
    Beside("eval_batch_size", "per_device_eval_batch_size",
           {"axolotl": "eval_batch_size", "torchtune": None},
           ("per_gpu_eval_batch_size", "batch_size_val")),
    Beside("eval_accumulation_steps", "eval_accumulation_steps",
           {"axolotl": None, "torchtune": None}),
    Beside("workers", "dataloader_num_workers", _NOT_IN_TUNE,
           ("num_workers", "dataloader.num_workers")),
)  # fmt: skip
