"""The files of `--from` as documents, with the files that they name.

`training_args.bin`, which the Trainer saves beside a checkpoint, is a pickle inside a zip file. No
class of it is imported and nothing of it is run: every class becomes a stand-in that keeps only its
state.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from oomdoctor.errors import OomDoctorError, usage_error
from oomdoctor.records.facts.choices import FormatName
from oomdoctor.records.report.user_training import COMMAND_LINE, OF_SHELLS, Document, NotTaken
from oomdoctor.stacks.programs import BY_NAME, ms_swift, recognize, rollouts
from oomdoctor.stacks.programs.trl import COMMANDS, CONFIGS, NOT_ITS_STEP
from oomdoctor.stacks.reading.command_line import Command, command_in, with_unsaid
from oomdoctor.stacks.reading.script import read_script
from oomdoctor.system.composed_file import read_composed
from oomdoctor.system.settings_file import read_text, read_with_text

OPTION = "--from"
SAVED_ARGUMENTS = "training_args.bin"
_ADAPTER = "adapter_config.json"
# Settings that may name a file of another program, and that program.
_NAMED: tuple[tuple[str, FormatName], ...] = (
    ("deepspeed", "deepspeed"),
    ("deepspeed_config.deepspeed_config_file", "deepspeed"),
)
# Parts of accelerate's file, and how its options for them begin.
_LAUNCHED = (("fsdp_config", "fsdp_"), ("parallelism_config", "parallelism_config_"))
_VERL_RL = "actor_rollout_ref"  # only files of its trainers with an engine have it
# Settings of peft as a Trainer's script calls them.
_ADAPTER_NAMES = {
    "base_model_name_or_path": "model_name_or_path",
    "r": "lora_r",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "target_modules": "lora_target_modules",
}


def read_documents(texts: Sequence[str], *, here: bool = False) -> tuple[Document, ...]:
    """What each text of the command line says, then the files that they name.

    With `here`, files that they name are left out if they are not on this machine.

    Raises:
        OomDoctorError: a file is missing or cannot be read (exit 2).
    """
    documents = [document for text in texts for document in documents_of(text)]
    read_paths = {Path(document.path).resolve() for document in documents}
    for document in tuple(documents):
        for name, program in _NAMED:
            try:
                path = _named_file(document, name)
            except OomDoctorError:
                if not here:
                    raise
                continue
            if path is not None and path.resolve() not in read_paths:
                read_paths.add(path.resolve())
                documents.append(_file(path, program))
    return tuple(documents)


def with_named_file(document: Document) -> Mapping[str, Any]:
    """The settings of a file, with those of a DeepSpeed file that it names in place of the name.

    They are as they were if that file is not on this machine or cannot be read.
    """
    try:
        named = _named_file(document, "deepspeed")
        if named is None:
            return document.values
        return {**document.values, "deepspeed": read_with_text(named, OPTION)[0]}
    except OomDoctorError:
        return document.values


def split_program(text: str) -> tuple[FormatName | None, str]:
    """`axolotl:train.yml` names the program of a file; other text is a path alone."""
    head, colon, rest = text.partition(":")
    for name in get_args(FormatName):
        if colon and head == name and rest:
            return name, rest
    return None, text


def is_command(text: str) -> bool:
    """Whether a text is a command or a shell script, not the name of a file of settings."""
    program, name = split_program(text)
    path = Path(name)
    return path.suffix in OF_SHELLS if path.exists() else program is None and " " in text.strip()


def documents_of(text: str) -> list[Document]:
    """One file, `FILE` or `PROGRAM:FILE`, or the files and options of a command that starts one.

    Raises:
        OomDoctorError: it is missing or cannot be read (exit 2).
    """
    path = Path(text)
    if not is_command(text):
        return [read_document(text)]
    if path.is_file():
        command = command_in(read_text(path, OPTION))
        if command is None:
            hint = "pass the command itself: --from 'train.py --max_length 1024 ...'"
            raise _unfit("bad_config", path, "no line of it starts a training run", hint)
        return _of_command(command, text, path.parent)
    command = command_in(text)
    if command is None:
        return [read_document(text)]
    if command.file is not None and not Path(command.file).expanduser().is_file():
        why = f"No such file; the command is {text!r}"
        hint = f"check the path, from {Path.cwd()}"
        raise _unfit("config_missing", command.file, why, hint)
    started = command.file or command.typed
    return _of_command(command, f"{started}{COMMAND_LINE}", Path())


def _of_command(command: Command, name: str, folder: Path) -> list[Document]:
    """What a command says, which is called `name`; it is typed in `folder` or in this one."""

    def file(word: object) -> Path:
        near = folder / str(word)
        return near if near.is_file() else Path(str(word)).expanduser()

    options = dict(command.options)
    named = file(options.pop("config")) if "config" in options else None
    base = {} if named is None else read_with_text(named, OPTION)[0]
    unread = {key: str(value) for key, value in options.items() if "$" in str(value)}
    options = {key: value for key, value in options.items() if key not in unread}
    left = tuple(
        NotTaken(key, value, name, None, "the command does not set this variable", True)
        for key, value in unread.items()
    )
    typed = Document(name, {**base, **options}, left_out=left)
    if command.program == "trl":
        documents = [_of_trl(typed, command.word)]
    elif command.word in rollouts.COMMANDS:
        documents = [_of_rollouts(typed, command.word)]
    elif command.file is None:
        documents = [_of_swift(typed, command.word)]
    elif command.file.endswith(".py"):
        path = file(command.file)
        documents = [read_script(str(path), read_text(path, OPTION), None, typed)]
    else:
        main = _file(file(command.file), command.program)
        lines = {key: line for key, line in main.lines.items() if key not in options}
        main = replace(main, values={**main.values, **options}, lines=lines, left_out=left)
        documents = [_of_swift(main, command.word) if command.program else main]
    if "config_file" in command.launcher:
        documents.append(_file(file(command.launcher["config_file"]), "accelerate"))
    if command.processes is not None:
        engines = {"deepspeed": "DEEPSPEED", "fsdp": "FSDP", "fsdp_config": "FSDP"}
        engine = [kind for key, kind in engines.items() if documents[0].values.get(key)]
        if command.launcher.get("use_fsdp"):
            engine = ["FSDP"]
        kind = (*engine, "MULTI_GPU" if command.processes > 1 else "NO")[0]
        settings: dict[str, Any] = {"num_processes": command.processes, "distributed_type": kind}
        for part, head in _LAUNCHED:
            inner = {key: v for key, v in command.launcher.items() if key.startswith(head)}
            settings |= {part: inner} if inner else {}
        documents.append(Document(f"{name} (launcher)", settings, asked="accelerate"))
    return documents


def _of_rollouts(settings: Document, module: str) -> Document:
    """The settings for a module of verl or OpenRLHF, with what it trains for."""
    program, _ = rollouts.COMMANDS[module]
    table = BY_NAME[program].names
    assert table is not None, program
    return replace(settings, values=with_unsaid(settings.values, module, table), asked=program)


def _of_swift(settings: Document, word: str) -> Document:
    """The settings behind `swift WORD`, with what it trains for."""
    objective = ms_swift.COMMANDS[word]
    values = (
        settings.values if objective == "default" else {"rlhf_type": objective, **settings.values}
    )
    return replace(settings, values=values, asked="ms-swift")


def _of_trl(options: Document, word: str) -> Document:
    """The options of `trl WORD`, with what it trains for."""
    config, left = COMMANDS[word], options.left_out
    if config not in CONFIGS:
        left += (NotTaken("trl", f"trl {word}", options.path, None, NOT_ITS_STEP, True),)
    values = {"objective": CONFIGS.get(config, "default"), **options.values}
    calls = frozenset({config.replace("Config", "Trainer")})
    return replace(options, values=values, asked="trl", left_out=left, calls=calls)


def read_document(text: str) -> Document:
    """One file, `FILE` or `PROGRAM:FILE`.

    Raises:
        OomDoctorError: it is missing or cannot be read (exit 2).
    """
    program, path = split_program(text)
    place = Path(path).expanduser()
    head, _, rest = text.partition(":")
    if program is None and not place.exists() and rest and Path(rest).expanduser().exists():
        raise usage_error(
            "bad_option",
            f"--from: {head} is not a program whose files are read",
            f"name one of {', '.join(get_args(FormatName))}, or pass the file alone: {rest}",
        )
    return _folder(place) if place.is_dir() else _file(place, program, shown=path)


def _file(path: Path, program: FormatName | None, shown: str | None = None) -> Document:
    if path.name == SAVED_ARGUMENTS:
        return _saved(path)
    if path.suffix == ".py":
        return read_script(shown or str(path), read_text(path, OPTION), program)
    values, text = read_composed(path, OPTION)
    document = Document(shown or str(path), values, lines_of(text), program)
    if _VERL_RL in values and (program or recognize(values)) == "verl":
        return _of_rollouts(document, "verl.trainer.main_ppo")
    return document


def _folder(path: Path) -> Document:
    """A folder that the Trainer saved into: its arguments, and those of an adapter."""
    if not (path / SAVED_ARGUMENTS).is_file():
        why = f"a folder without {SAVED_ARGUMENTS}"
        raise _unfit("config_missing", path, why, "pass the configuration file itself")
    return _saved(path / SAVED_ARGUMENTS)


def _saved(path: Path) -> Document:
    values: dict[str, Any] = dict(read_saved_arguments(path))
    adapter = path.parent / _ADAPTER
    if adapter.is_file():
        adapter_config, _ = read_with_text(adapter, OPTION)
        values |= {
            name: adapter_config[key]
            for key, name in _ADAPTER_NAMES.items()
            if adapter_config.get(key) is not None
        }
        values["use_peft"] = True
    return Document(str(path), values, {}, "trl" if "max_length" in values else "trainer")


def _named_file(document: Document, name: str) -> Path | None:
    """The file that a setting names, from the working folder or a folder above the document."""
    value: Any = document.values
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if not isinstance(value, str) or not value.strip():
        return None
    if value in ms_swift.ENGINES and (document.asked or recognize(document.values)) == "ms-swift":
        return None
    named = Path(value).expanduser()
    # Examples name their files from the root of a repository.
    places = (named, *(folder / named for folder in Path(document.path).absolute().parents))
    with suppress(OSError):  # too long for the name of a file
        for place in places:
            if place.is_file():
                return place
    why = f"{name} names {value[:200]}, and there is no such file"
    hint = f"pass it as well: --from {document.path} --from deepspeed:FILE"
    raise _unfit("config_missing", document.path, why, hint)


def _unfit(code: str, path: object, why: str, hint: str) -> OomDoctorError:
    return usage_error(code, f"{OPTION}: {path}: {why}", hint)


def lines_of(text: str) -> dict[str, int]:
    """The lines by dotted path, counted from 1; empty where PyYAML cannot read the text.

    JSON is YAML as well, unless it is indented with tabs.
    """
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        return {}
    try:
        return dict(_walk(yaml.compose(text, yaml.SafeLoader), ""))
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}


def _walk(node: Any, head: str) -> Iterator[tuple[str, int]]:
    if node is None or node.id != "mapping":
        return
    for key, value in node.value:
        if key.id != "scalar":
            continue
        name = f"{head}{key.value}"
        yield name, key.start_mark.line + 1
        yield from _walk(value, f"{name}.")


_LIMIT = 1 << 20  # bytes of the pickle; real ones have some kilobytes
_INSTEAD = "pass the file with the arguments instead"
# What reading a damaged archive or pickle may raise.
_DAMAGED = (
    *(OSError, ValueError, LookupError, AttributeError, TypeError, EOFError, RecursionError),
    *(zipfile.BadZipFile, pickle.UnpicklingError),
)


class _StandIn:
    """An object of any class: what it was made with, and its state."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.arguments = getattr(self, "arguments", ())
        self.state = state


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        del module, name
        return type("StandIn", (_StandIn,), {"__new__": lambda cls, *_: object.__new__(cls)})

    def persistent_load(self, pid: Any) -> None:
        del pid  # tensors are not read


def read_saved_arguments(path: Path) -> dict[str, Any]:
    """The arguments by name; what is neither text, a number nor a list of these is left out.

    Raises:
        OomDoctorError: this is not a file that the Trainer has saved (exit 2).
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            (entry,) = [member for member in members if member.filename.endswith("/data.pkl")]
            if entry.file_size > _LIMIT:
                raise ValueError("is too large")
            saved = _Reader(io.BytesIO(archive.read(entry))).load()
    except _DAMAGED as error:
        why = f"not a training_args.bin of the Trainer ({error})"
        raise _unfit("bad_config", path, why, _INSTEAD) from None
    state = getattr(saved, "state", None)
    if not isinstance(state, dict):
        raise _unfit("bad_config", path, "holds no arguments", _INSTEAD)
    plain = {str(key): _plain(value) for key, value in state.items()}
    return {
        key: value for key, value in plain.items() if not key.startswith("_") and value is not None
    }


def _plain(value: Any) -> Any:
    if isinstance(value, _StandIn):  # an enum, which is made from its value
        return _plain(value.arguments[0]) if len(value.arguments) == 1 else None
    if isinstance(value, list | tuple | set):
        return [item for item in map(_plain, value) if item is not None]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()} or None
    return value if isinstance(value, str | int | float | bool) else None
