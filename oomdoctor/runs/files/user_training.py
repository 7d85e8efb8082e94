"""The training that `--from` describes: its files are read, checked, and put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from oomdoctor.errors import OomDoctorError
from oomdoctor.records.config import TrainConfig
from oomdoctor.records.model import ModelRef
from oomdoctor.records.user_training import UserTraining
from oomdoctor.runs.files.parsed import checked
from oomdoctor.stacks.reading.finish import Overrides, finished
from oomdoctor.stacks.reading.merge import draft_of, recognized
from oomdoctor.stacks.writing.patch import Written, written
from oomdoctor.system.models import hub
from oomdoctor.system.train_config import read_text
from oomdoctor.system.training_files.documents import read_documents


def read_user_training(
    texts: Sequence[str], model: ModelRef | None, overrides: Overrides, python: str | None
) -> UserTraining:
    """The training of the files; `model` is that of the command line, if it names one.

    `python` is the interpreter that the user trains with: its libraries check the files.

    Raises:
        OomDoctorError: a file cannot be used, or they contradict each other (exit 2).
    """
    documents = tuple(recognized(one) for one in read_documents(texts))
    draft = draft_of(documents if python is None else checked(documents, python))
    asked = model
    if asked is None and draft.model is not None:
        asked = ModelRef(name=draft.model, revision=draft.values.get("revision"))
    return finished(draft, lambda: _config_of(asked), overrides)


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
        return hub.resolve_with_notes(model)[0].config
    except OomDoctorError:
        return {}
