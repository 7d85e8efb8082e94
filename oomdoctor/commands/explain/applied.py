"""A remedy of `explain` as a change of the user's own file: the lines, and a diff."""

from __future__ import annotations

import ast
import difflib
import itertools
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from oomdoctor.commands.ladder.your_changes import as_the_program_does
from oomdoctor.commands.user_training import write_change
from oomdoctor.errors import OomDoctorError, usage_error
from oomdoctor.records.configuration.config import TrainConfig, changed_keys
from oomdoctor.records.configuration.faults import config_faults
from oomdoctor.records.facts.choices import AUTO
from oomdoctor.records.report.diagnosis import Diagnosis, Remedy
from oomdoctor.records.report.user_training import (
    COMMAND_LINE,
    AppliedRemedy,
    ChangedLine,
    Document,
    UserTraining,
)
from oomdoctor.stacks.names.row import shown
from oomdoctor.stacks.programs import BY_NAME
from oomdoctor.stacks.programs.program import BESIDE
from oomdoctor.stacks.reading.command_line import command_of
from oomdoctor.stacks.reading.finish import Overrides, finished
from oomdoctor.stacks.reading.merge import draft_of
from oomdoctor.stacks.writing.changed_lines import main_file
from oomdoctor.stacks.writing.detaching import detached
from oomdoctor.stacks.writing.pasting import pasted
from oomdoctor.stacks.writing.patch import (
    NotPatchedError,
    Written,
    by_file,
    code_place,
    edit_of,
    patched,
    written,
)
from oomdoctor.stacks.writing.yaml_text import scalar
from oomdoctor.system.regular_files import with_line_ends
from oomdoctor.system.settings_file import read_text
from oomdoctor.system.training_files import documents_of, read_documents

_SOME_GPUS = 2  # for a file that shards over GPUs which its launcher counts
_SHORTEST = 256


class _NotAppliedError(Exception):
    """Why a remedy is no change of this file."""


def apply_remedy(diagnosis: Diagnosis, file: str, number: int | None) -> AppliedRemedy:
    """The first remedy that is a change of the settings in this file, or the one with a number.

    Raises:
        OomDoctorError: the file cannot be read, or there is no such remedy (exit 2).
    """
    if number is not None and not 1 <= number <= len(diagnosis.remedies):
        raise usage_error(
            "bad_option",
            f"--remedy: there are {len(diagnosis.remedies)} remedies; {number} is not one of them",
            "oomdoctor explain FILE --verbose lists them",
        )
    refused: tuple[str, ...] = ()
    read_text(Path(file), "--apply")
    for place, remedy in enumerate(diagnosis.remedies, 1):
        if number not in (None, place):
            continue
        applied = applied_to_file(remedy, place, file)
        if applied.number is not None:
            return replace(applied, not_applied=refused)
        refused += applied.not_applied
    return AppliedRemedy(file, None, None, {}, (), "", refused)


def applied_to_file(remedy: Remedy, number: int, file: str) -> AppliedRemedy:
    """A remedy as a change of this file. If it is none, it has no number, and says why.

    Raises:
        OomDoctorError: the file cannot be read (exit 2).
    """
    text = read_text(Path(file), "--apply")
    try:
        applied = _applied(_training(read_documents((file,))), remedy, file, text)
    except (_NotAppliedError, NotPatchedError) as error:
        return AppliedRemedy(file, None, None, {}, (), "", (f"{remedy.change}: {error}",))
    return replace(applied, number=number)


def start_of(file: str) -> tuple[tuple[str, ...] | None, int]:
    """The words of the usual command that trains with a file, and how many GPUs it takes.

    None if the file only launches or shards a training, or its program starts it in many ways.

    Raises:
        OomDoctorError: the file cannot be read (exit 2).
    """
    training = _training(read_documents((file,)))
    program, config = BY_NAME[main_file(training).format], training.config
    command = None if program.is_launcher else program.command(config, file)
    if command is None:
        return None, config.world_size
    words = shlex.split(command)
    variables = "=" in words[0]  # as a shell reads them
    return (*(["env"] if variables else []), *words), config.world_size


def applied_to_command(
    remedy: Remedy, number: int, command: Sequence[str]
) -> tuple[AppliedRemedy, tuple[str, ...]] | None:
    """A remedy as a change of the options of a command, and its words then; None if it is none.

    Raises:
        OomDoctorError: it starts no training that can be read.
    """
    started = command_of(command)
    training = _training(documents_of(shlex.join(command)))
    try:
        after = _changed(training, remedy)
        change = written(training, after, {})
    except (_NotAppliedError, NotPatchedError):
        return None
    own = all((line.file or "").endswith(COMMAND_LINE) for line in change.lines)
    takes_more = started is not None and started.program is not None
    added = any(line.before is None for line in change.lines)
    if not own or not change.lines or change.code or (added and not takes_more):
        return None
    words = list(command)
    for line in change.lines:
        words = _with_option(words, line)
    before, new = shlex.join(command), shlex.join(words)
    changes = changed_keys(training.config, after)
    return AppliedRemedy(
        file=change.lines[0].file or "",
        number=number,
        change=remedy.change,
        changes={key: shown(value) for key, value in changes.items()},
        lines=change.lines,
        diff=f"-{before}\n+{new}\n",
        not_applied=(),
    ), tuple(words)


def _with_option(words: Sequence[str], line: ChangedLine) -> list[str]:
    """The words of a command with an option changed, added or left out."""
    kept: list[str] = []
    skips = False
    for word in words:
        if word.startswith("--"):
            name, _, _ = word[2:].partition("=")
            skips = name.replace("-", "_") == line.name
        if not skips:
            kept.append(word)
    return kept if line.after is None else [*kept, f"--{line.name}", line.after]


def _applied(training: UserTraining, remedy: Remedy, file: str, text: str) -> AppliedRemedy:
    """A remedy as a change of the file.

    Raises:
        _NotAppliedError, NotPatchedError: it is none.
    """
    settings = {} if _settings(training.config, remedy) else trainer_settings(remedy)
    changed: Mapping[str, Any] = settings
    if remedy.key == _DETACH and file.endswith(".py"):
        change = _lines_that_keep(file, text)
        new = _edited(file, text, change)
    elif settings:
        change = _lines_of_settings(training, settings, file, text)
        new = _edited(file, text, change)
    else:
        after = _changed(training, remedy)
        change = _lines(training, after, file, text)
        new = _patched(file, text, change, after)
        changed = changed_keys(training.config, after)
    return AppliedRemedy(
        file=file,
        number=None,
        change=remedy.change,
        changes={key: shown(value) for key, value in changed.items()},
        lines=change.lines,
        diff=_diff(file, text, new),
        not_applied=(),
        code=change.code,
    )


def in_your_file(diagnosis: Diagnosis, training: UserTraining) -> Diagnosis:
    """The diagnosis with the lines of the user's files for each remedy that they can say.

    Changes of the training for which they have no setting come last, and say so.
    """
    own = PurePath(main_file(training).path).name
    said, unsaid = list[Remedy](), list[Remedy]()
    for remedy in diagnosis.remedies:
        try:
            after = _changed(training, remedy)
        except _NotAppliedError:
            said.append(remedy)  # not of this file, or the file says so already
            continue
        lines = _said(training, after, own)
        if lines:
            said.append(replace(remedy, lines={own: "\n".join(lines), **remedy.lines}))
        else:
            notes = (remedy.note, f"{own} has no setting for it")
            unsaid.append(replace(remedy, note="; ".join(filter(None, notes))))
    return replace(diagnosis, remedies=(*said, *unsaid))


def _said(training: UserTraining, after: TrainConfig, own: str) -> list[str]:
    """The lines of the files, of which `own` is the main one; empty if they cannot say it."""
    try:
        change = write_change(training, after)
    except NotPatchedError:
        return []
    texts = by_file([line for line in change.lines if line.file is not None])
    said = [
        text if file == own else f"{text} in {file}"
        for file, lines in texts.items()
        for text in lines
    ]
    for code in change.code:
        said += [f"# {code_place(code)}:", *code.imports, *code.code.splitlines()]
    return said


def write(applied: AppliedRemedy, save: Callable[[Path, bytes], None]) -> AppliedRemedy:
    """Change the file. As it was, it is kept beside it with `.bak` behind its name, or `.bak.1`.

    `save` writes a whole file or nothing. The file is read again, so nothing is lost that was
    changed since. Line ends stay as they are.

    Raises:
        OomDoctorError: the file cannot be read, changed or copied.
    """
    path = Path(applied.file).resolve()
    with _kept_beside(path) as copy:
        try:
            new = changed_text(applied, read_text(copy, "--apply"))
        except NotPatchedError as error:
            raise usage_error(
                "bad_config", f"--apply: {path} has changed meanwhile: {error}", "try it again"
            ) from None
        save(path, with_line_ends(copy.read_bytes(), new if new.endswith("\n") else f"{new}\n"))
        path.chmod(copy.stat().st_mode)
    return replace(applied, written=True, backup=str(copy))


def changed_text(applied: AppliedRemedy, text: str) -> str:
    """The text of the file with the remedy.

    Raises:
        NotPatchedError: the text is not what it was.
    """
    return _edited(applied.file, text, Written(applied.lines, applied.code))


def _edited(file: str, text: str, change: Written) -> str:
    try:
        text = pasted(text, change.code)  # its lines are those of the text as it is
        return patched(file, text, tuple(map(edit_of, change.lines)))
    except ValueError as error:
        raise NotPatchedError(str(error)) from None


@contextmanager
def _kept_beside(path: Path) -> Iterator[Path]:
    """A copy of the file, which goes if the block fails. Earlier copies stay: one may be what the
    user wrote.

    Raises:
        OomDoctorError: it cannot be made.
    """
    copy = path
    try:
        for number in itertools.count():
            copy = path.with_name(f"{path.name}.bak" + (f".{number}" if number else ""))
            with suppress(FileExistsError):
                copy.open("xb").close()  # not through a link
                break
    except OSError as error:
        raise OomDoctorError("output_failed", f"cannot write {copy}: {error.strerror}") from None
    try:
        shutil.copy2(path, copy)
        yield copy
    except BaseException as error:
        copy.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise OomDoctorError("output_failed", f"cannot write {copy}: {error.strerror}") from None


def _training(documents: Sequence[Document]) -> UserTraining:
    draft = draft_of(documents)
    try:
        return finished(draft, dict, Overrides())
    except OomDoctorError as error:
        if error.code != "gpus_unknown":
            raise
        return finished(draft, dict, Overrides(gpus=_SOME_GPUS))


def _changed(training: UserTraining, remedy: Remedy) -> TrainConfig:
    """The rung of the file with the remedy."""
    before = training.config
    changes = _settings(before, remedy)
    if not changes:
        raise _NotAppliedError("it is not a training setting")
    if before.world_size > 1:
        changes = {key: value for key, value in changes.items() if key != "world_size"}
    for key, _ in _HALVED.values():
        own = getattr(before, key)
        if key in changes and own != AUTO and own < changes[key]:
            raise _NotAppliedError(f"the file already has {own}")
    after = as_the_program_does(training, before)(replace(before, **changes))
    if after == before:
        raise _NotAppliedError("the file says so already")
    size = after.micro_batch_size
    if size != AUTO and after.rank_batch_size() % size:
        whole = size * before.accumulation_steps() * after.world_size
        after = replace(after, effective_batch_size=whole)
    if faults := config_faults(after):
        raise _NotAppliedError("; ".join(f"{key} {what}" for key, what in faults))
    return after


def _settings(before: TrainConfig, remedy: Remedy) -> dict[str, Any]:
    """The keys that the remedy sets; half of a number that is not known of the training."""
    settings: dict[str, Any] = dict(remedy.changes)
    if isinstance(settings.get("lora_targets"), list):
        settings["lora_targets"] = tuple(settings["lora_targets"])
    settings.pop("effective_batch_size", None)
    if not settings and remedy.key in _HALVED:
        key, least = _HALVED[remedy.key]
        value = getattr(before, key)
        return {key: value // 2} if value != AUTO and value // 2 >= least else {}
    return settings


# Remedies that change a number: the key of the rung, and the least that it becomes.
_HALVED = {
    "smaller_batch": ("micro_batch_size", 1),
    "shorter_sequence": ("sequence_length", _SHORTEST),
}


def trainer_settings(remedy: Remedy) -> dict[str, Any]:
    """The arguments of `TrainingArguments(...)` that a remedy sets; {} if it is no such line."""
    try:
        call = ast.parse(remedy.lines.get("transformers", ""), mode="eval").body
        if not isinstance(call, ast.Call) or ast.unparse(call.func) != "TrainingArguments":
            return {}
        return {
            keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg
        }
    except (SyntaxError, ValueError):
        return {}


def _lines_of_settings(
    training: UserTraining, settings: Mapping[str, Any], file: str, text: str
) -> Written:
    """The lines of the file that say settings of transformers' Trainer that no rung has."""
    program = BY_NAME[main_file(training).format]
    own = {setting.name: program.name_of(setting) for setting in BESIDE}
    said = read_documents((file,))[0]
    lines = []
    for setting, value in settings.items():
        name = own.get(setting, setting if program.trainer_arguments else None)
        if name is None:
            raise _NotAppliedError(f"{program.brand or program.name} has no {setting}")
        before = said.values.get(name)
        lines.append(
            ChangedLine(
                file,
                name,
                None if before is None else scalar(before),
                scalar(value),
                said.lines.get(name),
            )
        )
    if all(line.before == line.after for line in lines):
        raise _NotAppliedError("the file says so already")
    return Written(tuple(lines))


def _lines_that_keep(file: str, text: str) -> Written:
    """The lines of a loop that keep tensors with their graphs, which drop the graphs now."""
    try:
        return Written((), detached(file, text))
    except ValueError as error:
        raise _NotAppliedError(str(error)) from None


_DETACH = "detach"  # the remedy for tensors that are kept with their graphs


def _lines(training: UserTraining, after: TrainConfig, file: str, text: str) -> Written:
    """The lines of the file that say the changed rung, and code to paste into it."""
    change = written(training, after, {file: text} if file.endswith(".py") else {})
    elsewhere = [line.name for line in change.lines if line.file != file]
    if elsewhere:
        raise _NotAppliedError(f"{', '.join(elsewhere)} is not a setting of this file")
    if not change.lines and not change.code:
        raise _NotAppliedError("the file has no setting for it")
    return change


def _patched(file: str, text: str, change: Written, after: TrainConfig) -> str:
    """The new text, which is read again: it must say the changed rung, and nothing else."""
    new = _edited(file, text, change)
    read_back = _training((_read(file, new),)).config
    # What is cast beside quantized weights is the program's choice.
    after = replace(after, world_size=read_back.world_size, kbit_prepare=read_back.kbit_prepare)
    if read_back != after:
        wrong = ", ".join(changed_keys(read_back, after))
        raise _NotAppliedError(f"the file has no setting for {wrong}")
    return new


def _read(file: str, text: str) -> Document:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        copy = Path(folder) / Path(file).name
        copy.write_text(text, encoding="utf-8")
        return replace(read_documents((str(copy),))[0], path=file)


def _diff(file: str, before: str, after: str) -> str:
    lines = difflib.unified_diff(
        before.splitlines(keepends=True),
        after.splitlines(keepends=True),
        file if file.startswith("/") else f"a/{file}",
        file if file.startswith("/") else f"b/{file}",
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
