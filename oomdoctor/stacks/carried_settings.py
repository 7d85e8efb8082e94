"""Settings without effect on memory or speed, carried from the user's file to an export."""

from __future__ import annotations

from collections.abc import Mapping

from oomdoctor.records.facts.choices import FormatName
from oomdoctor.stacks.names.row import Settings, flat, put
from oomdoctor.stacks.programs import BY_NAME
from oomdoctor.stacks.programs.program import BESIDE, Scalar
from oomdoctor.stacks.rung import StackRung

Named = dict[str, tuple[str, Scalar]]
"""Settings by their keys, each with its name in the file."""
# A script has options for these, whose defaults they become.
OPTIONS = frozenset({"learning_rate", "epochs", "output_dir"})


def beside_of(values: Mapping[str, object], program: FormatName, objective: str) -> Named:
    """The settings of a file by their keys, each with its name there and its value."""
    told = dict(flat(values))
    named: Named = {}
    for setting in BESIDE:
        name = BY_NAME[program].name_of(setting)
        value = None if name is None else setting.value(told.get(name))
        if name is not None and value is not None and setting.objective in (None, objective):
            named[setting.key] = (name, value)
    return _warmed_up(named, told)


def _warmed_up(named: Named, told: Mapping[str, object]) -> Named:
    """With the warm-up as a number of steps or as a share of them, whichever its name."""
    share = named.get("warmup_ratio")
    older = told.get("warmup_ratio")  # of transformers 4
    if isinstance(older, int | float) and (share is None or share[0] != "warmup_ratio"):
        named["warmup_ratio"] = ("warmup_ratio", older)
    name, steps = named.get("warmup_steps", ("", 0))
    if isinstance(steps, float) and 0 < steps < 1:
        del named["warmup_steps"]
        named["warmup_ratio"] = (name, steps)
    elif "warmup_ratio" in named and named["warmup_ratio"][0] == "warmup_steps":
        del named["warmup_ratio"]
    return named


def carried(rung: StackRung, target: FormatName) -> dict[str, Scalar]:
    """What a target can say of the settings that the rung brings along, by its own names."""
    named: dict[str, Scalar] = {}
    for setting in BESIDE:
        name, value = BY_NAME[target].name_of(setting), rung.beside.get(setting.key)
        if name is None or value is None or (target == "pytorch" and setting.key not in OPTIONS):
            continue
        whole = setting.key == "epochs" and BY_NAME[target].whole_epochs
        if not whole or value == int(float(value)):
            named[name] = value
    return named


def not_carried(rung: StackRung, target: FormatName) -> frozenset[str]:
    """The keys that a target cannot say."""
    held = carried(rung, target)
    names = {setting.key: BY_NAME[target].name_of(setting) for setting in BESIDE}
    return frozenset(key for key in rung.beside if names[key] not in held)


def with_carried(settings: Mapping[str, object], rung: StackRung, target: FormatName) -> Settings:
    """The settings of a file, where those of the user replace the examples."""
    named: Settings = {
        key: dict(setting) if isinstance(setting, dict) else setting
        for key, setting in settings.items()
    }
    for name, value in carried(rung, target).items():
        put(named, name, value)
    return named
