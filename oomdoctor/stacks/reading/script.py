"""Reads the settings of a training script in Python, without running it.

Only what the text itself says is read: literal arguments, names that are bound to a literal once,
and the defaults of argparse options. Anything else is listed as not read.
"""

from __future__ import annotations

import ast

from oomdoctor.errors import usage_error
from oomdoctor.records.facts.choices import FormatName
from oomdoctor.records.user_training import Document, NotTaken
from oomdoctor.stacks.reading.script_calls import Reading
from oomdoctor.stacks.reading.script_content import Script, defaults_of, program_of
from oomdoctor.stacks.reading.script_names import PARSERS


def read_script(path: str, text: str, asked: FormatName | None = None) -> Document:
    """The settings of a script as a document.

    Raises:
        OomDoctorError: it is not Python, or it has no training settings (exit 2).
    """
    script = parse(path, text)
    if not script.values:
        raise usage_error(
            "bad_config",
            f"--from: {path}: no training settings in this script",
            "its settings are on its command line: put them into a YAML file, and pass that"
            if script.classes & PARSERS
            else "it needs TrainingArguments, SFTConfig or from_pretrained with literal values",
        )
    lines = {name: place.line for name, place in script.places.items()}
    left = tuple(
        NotTaken(one.name, one.source, path, one.line, one.reason, one.matters)
        for one in script.unread
    )
    return Document(
        path,
        script.values,
        lines,
        asked or program_of(script),
        defaults_of(script),
        left_out=left,
        calls=frozenset(script.classes),
    )


def parse(path: str, text: str) -> Script:
    """What a script says.

    Raises:
        OomDoctorError: it is not Python (exit 2).
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        raise usage_error(
            "bad_config",
            f"--from: {path}{f':{line}' if line else ''}: not Python: "
            f"{getattr(error, 'msg', error)}",
            "fix the file, or pass the settings as YAML or JSON",
        ) from None
    return Reading(text, tree).read()
