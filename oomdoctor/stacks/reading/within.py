"""Takes out of a rung what a rung does not have beside its other settings, and says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from oomdoctor.records.config import TrainConfig
from oomdoctor.records.rung.faults import config_faults
from oomdoctor.records.rung.keys import KEYS, dropped_faults, settled
from oomdoctor.records.user_training import NotTaken, Said


def within(
    config: TrainConfig, said: Mapping[str, Sequence[Said]], where: str
) -> tuple[TrainConfig, tuple[NotTaken, ...]]:
    """The nearest rung, and the settings that it leaves out or that mean nothing in it.

    `said` are the settings behind each key. Faults of other keys stay: the program refuses them
    as well.
    """
    left: list[NotTaken] = []
    for key, what in config_faults(config):
        for value in KEYS[key].instead:
            changed = replace(config, **{key: value})
            if key in {name for name, _ in config_faults(changed)}:
                continue
            config = changed
            reason = f"a rung cannot combine it: {what}"
            left += [
                NotTaken(one.name, one.value, one.file, one.line, reason, True)
                for one in said.get(key, ())
            ] or [NotTaken(key, str(value), where, None, reason, True)]
            break
    named = [key for key in said if KEYS[key].settles is None]
    left += [
        NotTaken(one.name, one.value, one.file, one.line, what, True)
        for key, what in dropped_faults(config, named)
        for one in said[key]
    ]
    return settled(config), tuple(left)
