"""`oomdoctor gpus` and `oomdoctor models`: the built-in facts about cards and models."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from oomdoctor.cli.options import answer
from oomdoctor.cli.streams import output
from oomdoctor.errors import OomDoctorError, usage_error

GPUS_EPILOG = """\b
Examples:
  oomdoctor gpus
  oomdoctor gpus "NVIDIA H200" --json
Next: `oomdoctor plan MODEL --gpu "RTX 4090"` predicts what fits on a card.
"""
MODELS_EPILOG = """\b
Examples:
  oomdoctor models
  oomdoctor models Qwen2.5-7B --json
Next: `oomdoctor probe Qwen/Qwen2.5-7B`
"""


def gpus(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="One card, by the name that nvidia-smi prints."),
    ] = None,
    json_: answer.ListJson = False,
) -> None:
    """Show the memory, bandwidth and peak speed of known GPUs.

    Peak speeds are dense rates.
    """
    from oomdoctor.render.lists.listing import render_gpus
    from oomdoctor.system import catalogue

    found = catalogue.gpus()
    if name is not None:
        card = catalogue.find_gpu(name)
        if card is None:
            raise _unknown("GPU", name, catalogue.nearest_gpus(name))
        found = (card,)
    output.publish_listing(partial(render_gpus, found), json_)


def models(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="One model, by its id or the last part of it."),
    ] = None,
    json_: answer.ListJson = False,
) -> None:
    """Show the built-in models.

    Their configurations come with oomdoctor, so they need no network.
    """
    from oomdoctor.render.lists.listing import render_models
    from oomdoctor.system import catalogue

    found = catalogue.models()
    if name is not None:
        model = catalogue.find_model(name)
        if model is None:
            raise _unknown("model", name, catalogue.nearest_models(name))
        found = (model,)
    output.publish_listing(partial(render_models, found), json_)


def _unknown(kind: str, name: str, nearest: tuple[str, ...]) -> OomDoctorError:
    return usage_error(
        f"unknown_{kind.lower()}",
        f"oomdoctor knows no {kind} named {name!r}",
        f"did you mean {', '.join(nearest)}?" if nearest else f"run `oomdoctor {kind.lower()}s`",
    )
