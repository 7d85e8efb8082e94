"""Settings that no rung has, because they change neither memory nor speed of a training step.

`export --from` carries them from one program to another, and `explain` reads some of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from oomdoctor.records.user_training import FormatName


@dataclass(frozen=True, slots=True)
class Beside:
    """A setting with the same meaning in several programs: `name` is transformers' name.

    `others` are the names of programs that call it otherwise; None if a program does not
    have it. `aliases` are read, never written.
    """

    key: str
    name: str
    others: Mapping[FormatName, str | None] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()

    def name_in(self, program: FormatName) -> str | None:
        """What a program calls it; None if it has no such setting."""
        return self.others.get(program, self.name)

    def all_names(self) -> Iterator[str]:
        """The names of all programs, the most usual first."""
        found = (self.name, *self.others.values(), *self.aliases)
        yield from dict.fromkeys(name for name in found if name is not None)


BESIDE: tuple[Beside, ...] = (
    Beside("eval_batch_size", "per_device_eval_batch_size",
           {"axolotl": "eval_batch_size", "torchtune": "batch_size_val"},
           ("per_gpu_eval_batch_size",)),
    Beside("eval_accumulation_steps", "eval_accumulation_steps",
           {"axolotl": None, "torchtune": None}),
    Beside("workers", "dataloader_num_workers", {"torchtune": "dataloader.num_workers"},
           ("num_workers",)),
)  # fmt: skip
