"""Settings that no rung has, because they change neither memory nor speed of a training step.

`export --from` carries them from one program to another, and `explain` reads some of them.
"""

from __future__ import annotations

from dataclasses import dataclass

Scalar = str | int | float
# The words of transformers for schedules, which the other programs share.
_SCHEDULES = frozenset(
    {"linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup",
     "inverse_sqrt", "reduce_lr_on_plateau", "cosine_with_min_lr", "warmup_stable_decay"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Beside:
    """A setting with the same meaning in several programs: `name` is transformers' name.

    A program that calls it otherwise says so in its row. `aliases` are read, never written.
    `objective` is the one that it belongs to, and `words` are the values that all programs have.
    """

    key: str
    name: str
    aliases: tuple[str, ...] = ()
    objective: str | None = None
    words: frozenset[str] = frozenset()

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


BESIDE: tuple[Beside, ...] = (
    Beside("learning_rate", "learning_rate"),
    Beside("epochs", "num_train_epochs"),
    Beside("max_steps", "max_steps"),
    Beside("warmup_steps", "warmup_steps"),
    # transformers 5 has one name: a number below 1 is a share of all steps.
    Beside("warmup_ratio", "warmup_ratio"),
    Beside("schedule", "lr_scheduler_type", words=_SCHEDULES),
    Beside("weight_decay", "weight_decay"),
    Beside("adam_beta1", "adam_beta1"),
    Beside("adam_beta2", "adam_beta2"),
    Beside("adam_epsilon", "adam_epsilon"),
    Beside("max_grad_norm", "max_grad_norm"),
    Beside("seed", "seed"),
    Beside("logging_steps", "logging_steps"),
    Beside("output_dir", "output_dir"),
    Beside("beta_of_dpo", "beta", objective="dpo"),
    Beside("beta_of_grpo", "beta", objective="grpo"),
    Beside("eval_batch_size", "per_device_eval_batch_size",
           ("per_gpu_eval_batch_size", "batch_size_val")),
    Beside("eval_accumulation_steps", "eval_accumulation_steps"),
    Beside("workers", "dataloader_num_workers", ("num_workers", "dataloader.num_workers")),
)  # fmt: skip
