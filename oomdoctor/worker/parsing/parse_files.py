"""`python -m oomdoctor.worker --parse`: settings on standard input, their parser's word on output.

In and out are JSON lists with an entry for each file. Nothing that the settings name is loaded. An
entry without settings asks for the release of the library alone, which needs no import.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Mapping
from importlib import metadata

from oomdoctor.worker.parsing.faults import ParserError
from oomdoctor.worker.parsing.parsers import (
    accelerate,
    axolotl,
    deepspeed,
    llama_factory,
    torchtune,
    trainer,
    trl,
)

Parser = Callable[[Mapping[str, object]], dict[str, object]]
# The format -> its parser, and the package that it is part of.
PARSERS: dict[str, tuple[Parser, str]] = {
    "trainer": (trainer, "transformers"),
    "trl": (trl, "trl"),
    "accelerate": (accelerate, "accelerate"),
    "deepspeed": (deepspeed, "deepspeed"),
    "axolotl": (axolotl, "axolotl"),
    "llama-factory": (llama_factory, "llamafactory"),
    "torchtune": (torchtune, "torchtune"),
}


def parse() -> int:
    """Answer the files of standard input; libraries may print, so the answer is the last line."""
    asked = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        answers = [_answer(one["format"], one["values"]) for one in asked]
    sys.stdout.write("\n" + json.dumps(answers) + "\n")
    return 0


def _answer(name: str, values: Mapping[str, object] | None) -> dict[str, object]:
    """`parser` is None if the library is not there; `fault` is what it refuses."""
    none: dict[str, object] = {"parser": None, "values": {}, "fault": None}
    if name not in PARSERS:
        return none
    parser, package = PARSERS[name]
    try:
        version = metadata.version(package)
        found = {} if values is None else parser(values)
    except ParserError as error:
        fault = {"name": error.setting, "message": str(error)}
        return none | {"parser": f"{package} {version}", "fault": fault}
    except (ImportError, metadata.PackageNotFoundError, OSError, AttributeError):
        return none  # missing, broken, or a release that has moved its parser
    return none | {"parser": f"{package} {version}", "values": found}
