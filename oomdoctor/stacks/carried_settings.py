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
    found: Named = {}
    for one in BESIDE:
        name = BY_NAME[program].name_of(one)
        value = None if name is None else one.value(told.get(name))
        if name is not None and value is not None and one.objective in (None, objective):
            found[one.key] = (name, value)
    return _warmed_up(found, told)


def _warmed_up(found: Named, told: Mapping[str, object]) -> Named:
    """With the warm-up as a number of steps or as a share of them, whichever its name."""
    share = found.get("warmup_ratio")
    older = told.get("warmup_ratio")  # of transformers 4
    if isinstance(older, int | float) and (share is None or share[0] != "warmup_ratio"):
        found["warmup_ratio"] = ("warmup_ratio", older)
    name, steps = found.get("warmup_steps", ("", 0))
    if isinstance(steps, float) and 0 < steps < 1:
        del found["warmup_steps"]
        found["warmup_ratio"] = (name, steps)
    elif "warmup_ratio" in found and found["warmup_ratio"][0] == "warmup_steps":
        del found["warmup_ratio"]
    return found


def carried(rung: StackRung, target: FormatName) -> dict[str, Scalar]:
    """What a target can say of the settings that the rung brings along, by its own names."""
    found: dict[str, Scalar] = {}
    for one in BESIDE:
        name, value = BY_NAME[target].name_of(one), rung.beside.get(one.key)
        if name is None or value is None or (target == "pytorch" and one.key not in OPTIONS):
            continue
        whole = one.key == "epochs" and BY_NAME[target].whole_epochs
        if not whole or value == int(float(value)):
            found[name] = value
    return found


def not_carried(rung: StackRung, target: FormatName) -> frozenset[str]:
    """The keys that a target cannot say."""
    held = carried(rung, target)
    names = {one.key: BY_NAME[target].name_of(one) for one in BESIDE}
    return frozenset(key for key in rung.beside if names[key] not in held)


def with_carried(settings: Mapping[str, object], rung: StackRung, target: FormatName) -> Settings:
    """The settings of a file, where those of the user replace the examples."""
    found: Settings = {
        key: dict(one) if isinstance(one, dict) else one for key, one in settings.items()
    }
    for name, value in carried(rung, target).items():
        put(found, name, value)
    return found
