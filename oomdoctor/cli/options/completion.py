"""What the shell offers for a half-typed MODEL, --recipe, --gpu or RUN. Loads no heavy library."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

_MOST = 50


def recipes(incomplete: str) -> list[str]:
    """Built-in recipes, `none`, and recipe files."""
    from oomdoctor.system.recipes.recipes import NONE, recipe_names

    return _starting(incomplete, [*recipe_names(), NONE]) + _paths(incomplete, ".toml")


def models(incomplete: str) -> list[str]:
    """Built-in models and those in the Hugging Face cache, by id or by its last part; folders."""
    from oomdoctor.system import catalogue
    from oomdoctor.system.models.fetch import cached_ids

    ids = [name for model in catalogue.models() for name in (model.id, *model.aliases)]
    names = list(dict.fromkeys([*cached_ids(), *ids]))
    # The shell keeps only what starts with the typed text, so part of a name is offered as such.
    tails = [] if "/" in incomplete else [name.rpartition("/")[2] for name in names]
    matching = _starting(incomplete, names) or _starting(incomplete, tails)
    return matching[:_MOST] + _paths(incomplete, None)


def gpus(incomplete: str) -> list[str]:
    """Cards by a name without spaces, such as RTX-4090."""
    from oomdoctor.system import catalogue

    return _starting(incomplete, [gpu_word(gpu.name) for gpu in catalogue.gpus()])


def gpu_word(name: str) -> str:
    """A card's name as one word that `--gpu` understands."""
    return re.sub(r"[ /]+", "-", re.sub(r"^(?:(?:NVIDIA|GeForce|Tesla) )+", "", name))


def runs(incomplete: str) -> list[str]:
    """The runs on disk, the latest first, and the cases."""
    from oomdoctor.system.store.cases import case_names

    names = _runs(incomplete, probes_only=False)
    return [*names, *_starting(incomplete, list(case_names()))][:_MOST]


def surveys(incomplete: str) -> list[str]:
    """The runs of probe and plan on disk, the latest first."""
    return _runs(incomplete, probes_only=False)


def places(incomplete: str) -> list[str]:
    """The rungs of the latest run, by their place in the table and by their label."""
    from oomdoctor.analysis.ranking import in_order
    from oomdoctor.commands.ladder.unfinished import stored_report
    from oomdoctor.errors import OomDoctorError
    from oomdoctor.system.store.run_list import open_run

    try:
        results = in_order(stored_report(open_run()))
    except OomDoctorError:
        return []
    numbers = [str(place) for place in range(1, len(results) + 1)]
    return _starting(incomplete, [*numbers, *(result.label for result in results)])


def one_of(words: Iterable[str]) -> Callable[[str], list[str]]:
    """What offers some fixed words."""
    choices = list(words)

    def offered(incomplete: str) -> list[str]:
        return _starting(incomplete, choices)

    return offered


def runs_and_files(incomplete: str) -> list[str]:
    """The runs and cases, and JSON files with a report."""
    return [*runs(incomplete), *_paths(incomplete, ".json")][:_MOST]


def probes(incomplete: str) -> list[str]:
    """The probes on disk, the latest first."""
    return _runs(incomplete, probes_only=True)


def _runs(incomplete: str, *, probes_only: bool) -> list[str]:
    from oomdoctor.system.store.run_list import run_names

    return _starting(incomplete, ["latest", *run_names(probes_only=probes_only)])[:_MOST]


def _starting(incomplete: str, words: list[str]) -> list[str]:
    typed = incomplete.lower()
    return list(dict.fromkeys(word for word in words if word.lower().startswith(typed)))


def _paths(incomplete: str, suffix: str | None) -> list[str]:
    """Folders, and files with the suffix, that continue a path; hidden ones only if asked for."""
    head, slash, tail = incomplete.rpartition("/")
    try:
        paths = sorted(Path(head + slash or ".").expanduser().iterdir())
    except (OSError, RuntimeError):
        return []
    named = [path for path in paths if path.name.startswith(tail)]
    shown = [path for path in named if tail.startswith(".") or not path.name.startswith(".")]
    return [
        f"{head}{slash}{path.name}{'/' if path.is_dir() else ''}"
        for path in shown
        if path.is_dir() or (suffix is not None and path.suffix == suffix)
    ][:_MOST]
