"""The training that `--from` describes: its files are read, checked, and put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oomdoctor.errors import OomDoctorError
from oomdoctor.records.model import ModelRef
from oomdoctor.records.user_training import UserTraining
from oomdoctor.runs.files.parsed import checked
from oomdoctor.stacks.reading.finish import Overrides, finished
from oomdoctor.stacks.reading.merge import draft_of, recognized
from oomdoctor.system.models import hub
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


def _config_of(model: ModelRef | None) -> Mapping[str, Any]:
    """The model's config.json; empty if it cannot be found, which the run itself reports."""
    if model is None:
        return {}
    try:
        return hub.resolve_with_notes(model)[0].config
    except OomDoctorError:
        return {}
