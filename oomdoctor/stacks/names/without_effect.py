"""Settings that no rung has, because they change neither memory nor speed of a training step.

`export --from` carries them from one program to another, and `explain` reads some of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oomdoctor.stacks.names.row import settings_data

Scalar = str | int | float


@dataclass(frozen=True, slots=True)
class Beside:
    """A setting with the same meaning in several programs: `name` is transformers' name.

    A program that calls it otherwise says so in its row. `aliases` are read, never written.
    `objective` is the one that it belongs to, and `words` are the values that all programs have.
    """

    key: str
    name: str
    aliases: Sequence[str] = ()
    objective: str | None = None
    words: Sequence[str] = ()

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


BESIDE = tuple(Beside(key, **row) for key, row in settings_data()["beside"].items())
