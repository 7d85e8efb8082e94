"""The training that `--from` describes: its files are read, checked, and put together.

The libraries of the user's interpreter say what they make of the settings. Where a library is
missing, the published names of its settings have to do. Of a script's library, only the release is
asked for. Where the release decides, the log names it, or it is the installed one, or else the one
from which our tables were read.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from oomdoctor.commands.jobs.host import python_path
from oomdoctor.errors import OomDoctorError
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.model import ModelRef
from oomdoctor.records.report.user_training import Document, UserTraining
from oomdoctor.stacks.programs import BY_NAME
from oomdoctor.stacks.reading.finish import Overrides, finished
from oomdoctor.stacks.reading.merge import (
    FILES_DISAGREE,
    bad_config,
    check_planned,
    draft_of,
    recognized,
)
from oomdoctor.stacks.writing.patch import Written, written
from oomdoctor.system.environment import worker_environment
from oomdoctor.system.models import hub
from oomdoctor.system.settings_file import read_text
from oomdoctor.system.training_files import OPTION, read_documents

_LIMIT_S = 120.0  # importing the libraries takes seconds, on a slow file system a minute
_LONGEST = 160
_DECIDE = frozenset({"trl"})  # libraries whose release decides what a script trains with


def read_user_training(
    texts: Sequence[str], model: ModelRef | None, overrides: Overrides, python: str | None
) -> UserTraining:
    """The training of the files; `model` is that of the command line, if it names one.

    `python` is the interpreter that the user trains with: its libraries check the files.

    Raises:
        OomDoctorError: a file cannot be used, or they contradict each other (exit 2).
    """
    documents = tuple(recognized(document) for document in read_documents(texts))
    if python is not None:
        documents = _with_releases(checked(documents, python), {})
    draft = draft_of(documents)
    check_planned(draft)
    asked = model
    if asked is None and draft.model is not None:
        asked = ModelRef(name=draft.model, revision=draft.values.get("revision"))
    return finished(draft, lambda: _config_of(asked), overrides)


Releases = Mapping[str, str]
"""The releases of packages that a log names."""
ReadFile = Callable[[Mapping[str, Any], Releases], tuple[UserTraining | None, tuple[str, ...]]]


def reader_of_file(path: Path, asked: Overrides, python: str, *, parse: bool) -> ReadFile:
    """What gives the training of one file, and notes about it.

    It takes the model's config.json, empty if it is not known, and the releases in the log. With
    `parse`, the libraries of the interpreter `python` say what they make of the file, as for
    `read_user_training`; else they only say their release, and defaults are the published ones. A
    DeepSpeed file that it names is read if it is here. The training is None if the file is no
    training, or says another one than the file it names.
    """

    @cache
    def documents() -> tuple[Document, ...]:
        read_files = tuple(
            recognized(document) for document in read_documents([str(path)], here=True)
        )
        try:
            return checked(read_files, python, parse=parse)
        except OomDoctorError:  # the release that ran took the settings
            return checked(read_files, python, parse=False)

    def read(
        config: Mapping[str, Any], log: Releases
    ) -> tuple[UserTraining | None, tuple[str, ...]]:
        try:
            draft = draft_of(_with_releases(documents(), log))
            check_planned(draft)
            return finished(draft, lambda: config, asked, on_gpus=False), ()
        except OomDoctorError as error:
            disagree = error.code == FILES_DISAGREE
            note = f"{error.message.removeprefix(f'{OPTION}: ')}; the settings of {path} are taken"
            return None, (note,) if disagree else ()

    return read


def _with_releases(documents: Sequence[Document], log: Releases) -> tuple[Document, ...]:
    """The documents with the releases that they run with, where these decide something."""

    def release(document: Document) -> str | None:
        program = BY_NAME[document.asked] if document.asked in _DECIDE else None
        if program is None:
            return document.library
        if program.package in log:
            return f"{program.package} {log[program.package]}, which the log names"
        installed = document.parser or document.library
        return installed or f"{program.package} {program.version}, assumed as none is installed"

    return tuple(replace(document, library=release(document)) for document in documents)


def write_change(training: UserTraining, after: TrainConfig) -> Written:
    """How the user's files say a changed training; scripts are read for it.

    Raises:
        NotPatchedError: a script cannot say it.
    """
    texts = {}
    for file in training.files:
        if file.path.endswith(".py"):
            with suppress(OomDoctorError):  # it is gone; its lines are known
                texts[file.path] = read_text(Path(file.path).expanduser(), "--from")
    return written(training, after, texts)


def _config_of(model: ModelRef | None) -> Mapping[str, Any]:
    """The model's config.json; empty if it cannot be found, which the run itself reports."""
    if model is None:
        return {}
    try:
        spec = hub.resolve_with_notes(model)[0]
    except OomDoctorError:
        return {}
    stored = {} if spec.quantized is None else {"quantization_config": spec.quantized}
    return {**spec.config, **stored}


def quant_method_of(training: UserTraining) -> str | None:
    """How the checkpoint of a training is quantized, by the model's config.json."""
    if training.model is None or training.config.quantization != "checkpoint":
        return None
    asked = ModelRef(name=training.model, revision=training.revision)
    stored = _config_of(asked).get("quantization_config", {})
    return str(stored["quant_method"]) if "quant_method" in stored else None


def checked(
    documents: Sequence[Document], python: str, *, parse: bool = True
) -> tuple[Document, ...]:
    """The documents with what their parsers say; unchanged where no parser answers.

    Without `parse`, only with the releases that decide something.

    Raises:
        OomDoctorError: a library refuses a setting (exit 2).
    """
    asked = [
        document
        for document in documents
        if document.asked in _DECIDE or (parse and not _is_script(document))
    ]
    answers = _answers(asked, python, parse=parse) if asked else None
    if answers is None:
        return tuple(documents)
    by_path = {
        document.path: _with(document, said) for document, said in zip(asked, answers, strict=True)
    }
    return tuple(by_path.get(document.path, document) for document in documents)


def _is_script(document: Document) -> bool:
    """Whether it is Python, which no parser of settings reads."""
    return document.path.endswith(".py")


def _with(document: Document, answer: Mapping[str, Any]) -> Document:
    if answer["parser"] is None:
        return document
    if answer["values"] is None:
        return replace(document, library=answer["parser"])
    if answer["fault"] is not None:
        raise _refused(document, answer["parser"], answer["fault"])
    return replace(document, effective=answer["values"], parser=answer["parser"])


def _refused(document: Document, parser: str, fault: Mapping[str, str | None]) -> OomDoctorError:
    name, message = fault["name"], str(fault["message"])
    message = message if len(message) <= _LONGEST else f"{message[: _LONGEST - 3]}..."
    line = document.lines.get(name or "")
    about = f"{name}: " if name and name not in message else ""
    program = BY_NAME[document.asked].package if document.asked else "its program"
    hint = f"fix this setting; {program} itself would stop here"
    return bad_config(document.path, f"{about}{message} ({parser})", hint, line)


def _answers(
    documents: Sequence[Document], python: str, *, parse: bool
) -> list[dict[str, Any]] | None:
    """An answer for each document; None if the interpreter gives none."""
    asked = [
        {
            "format": document.asked,
            "values": document.values if parse and not _is_script(document) else None,
        }
        for document in documents
    ]
    with tempfile.TemporaryDirectory(prefix="oomdoctor-") as folder:
        variables = worker_environment(None) | {"PYTHONPATH": python_path(Path(folder))}
        try:
            done = subprocess.run(
                [python, "-m", "oomdoctor.worker", "--parse"],
                input=json.dumps(asked, default=str),
                env=variables,
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
                check=False,
            )
            lines = done.stdout.strip().splitlines()
            answers = json.loads(lines[-1]) if done.returncode == 0 and lines else None
        except (OSError, subprocess.SubprocessError, ValueError):
            return None
    return answers if isinstance(answers, list) and len(answers) == len(documents) else None
