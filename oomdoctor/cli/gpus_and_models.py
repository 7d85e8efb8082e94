"""`oomdoctor gpus` and `oomdoctor models`: the built-in facts about cards and models."""

from __future__ import annotations

from typing import Annotated

from oomdoctor.cli.options import answer, option_named
from oomdoctor.cli.streams import output
from oomdoctor.errors import ExitCode, OomDoctorError

_Cards = Annotated[list[str] | None, option_named("gpus", "words")]
_Models = Annotated[list[str] | None, option_named("models", "words")]


def gpus(words: _Cards = None, json_: answer.ListJson = False) -> None:
    """Show the memory, bandwidth and peak speed of known GPUs.

    Peak speeds are dense rates. Exit code 3 if no name has all words.

    Examples:
      oomdoctor gpus H100
      oomdoctor gpus "NVIDIA H200" --json
    Next: `oomdoctor plan Qwen/Qwen2.5-7B --gpu H100` predicts what fits.
    """
    from oomdoctor.render.lists import gpu_list
    from oomdoctor.system import catalogue

    text = " ".join(words or ())
    cards = catalogue.search_gpus(text) if words else catalogue.gpus()
    if not cards:
        raise _no_match("GPU", text, catalogue.nearest_gpus(text))
    output.publish(gpu_list(cards).text, "json" if json_ else "table")


def models(words: _Models = None, json_: answer.ListJson = False) -> None:
    """Show the built-in models.

    Their configurations come with oomdoctor, so they need no network. Exit code 3 if no model has
    all words.

    Examples:
      oomdoctor models llama 8b
      oomdoctor models Qwen2.5-7B --json
    Next: `oomdoctor plan Qwen/Qwen2.5-7B --gpu L4`
    """
    from oomdoctor.render.lists import model_list
    from oomdoctor.system import catalogue

    text = " ".join(words or ())
    listed = catalogue.search_models(text) if words else catalogue.models()
    if not listed:
        raise _no_match("model", text, catalogue.nearest_models(text))
    output.publish(model_list(listed).text, "json" if json_ else "table")


def _no_match(kind: str, text: str, nearest: tuple[str, ...]) -> OomDoctorError:
    verb = f"oomdoctor {kind.lower()}s"
    hint = f"did you mean {answer.either(nearest)}?" if nearest else f"list all: {verb}"
    return OomDoctorError(
        f"unknown_{kind.lower()}", f"no known {kind} matches {text!r}", hint, ExitCode.NO
    )
