"""`python -m oomdoctor.worker --parse`: settings on standard input, their parser's word on output.

Each library parses the settings that are for it, in the user's interpreter, and says what it makes
of them or what it refuses. In and out are JSON lists with an entry for each file. Nothing that the
settings name is loaded. An entry without settings asks for the release of the library alone, which
needs no import.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from oomdoctor.package_data import data_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_IN_QUOTES = re.compile(r"[`'\"]([A-Za-z_]\w*)")


class ParserError(ValueError):
    """What a library refuses; `setting` is the name in the file, None if it does not say."""

    def __init__(self, setting: str | None, message: str) -> None:
        super().__init__(message)
        self.setting = setting


def of_pydantic(error: Exception, head: str) -> ParserError:
    """The first error of a pydantic model, or the first line of another error."""
    listed = getattr(error, "errors", None)
    if listed is None:
        return ParserError(None, (str(error).strip() or type(error).__name__).splitlines()[0])
    first = listed()[0]
    name = ".".join(str(part) for part in first.get("loc", ()))
    message = str(first.get("msg", "")).removeprefix("Value error, ")
    return ParserError(f"{head}{name}" if name else None, message.splitlines()[0])


def _refusal(message: str, values: Mapping[str, object]) -> ParserError:
    """What a library refuses in the first line of its message."""
    first = message.strip().splitlines()[0]
    return ParserError(_named(first, values), first)


def _named(message: str, values: Mapping[str, object]) -> str | None:
    """The setting that a message is about: one in quotes, or one whose name or value it has."""
    for word in _IN_QUOTES.findall(message):
        if word in values:
            return str(word)
    for name, value in values.items():
        if re.search(rf"\b{re.escape(str(name))}\b", message):
            return str(name)
        if isinstance(value, str) and len(value) > 2 and message.startswith(value):
            return str(name)
    return None


def plain(values: Mapping[str, object]) -> dict[str, object]:
    """The values that JSON has; enums become their values."""
    settings: dict[str, object] = {}
    for name, value in values.items():
        content = getattr(value, "value", value)
        if isinstance(content, Mapping):
            settings[str(name)] = plain(content)
        elif isinstance(content, str | int | float | bool | None):
            settings[str(name)] = content
        elif isinstance(content, list | tuple) and all(isinstance(part, str) for part in content):
            settings[str(name)] = list(content)
    return settings


class Facts(TypedDict):
    """What the parsers need to be told, from `data/stacks/parsers.toml`."""

    torchtune_components: list[str]
    left_out: list[str]
    deepspeed_of_world: list[str]
    trl_trainers: dict[str, list[str]]
    deepspeed_parts: dict[str, str]


_FACTS: Facts = data_of("stacks/parsers.toml")


def trainer(values: Mapping[str, object]) -> dict[str, object]:
    """transformers' `TrainingArguments`; settings that it does not have are a script's own."""
    from transformers import TrainingArguments

    return _parsed([TrainingArguments], values)


def trl(values: Mapping[str, object]) -> dict[str, object]:
    """The dataclasses that `trl sft`, `trl dpo`, `trl grpo` and `trl reward` parse."""
    import trl as library

    trainers, word = _FACTS["trl_trainers"].items(), values.get("objective")
    if word is None:
        fitting = [name for name, marks in trainers if set(marks) & set(values)]
    else:  # the command has named it
        fitting = [name for name, _ in trainers if name.lower() == f"{word}config"]
    kind = fitting[0] if fitting else "SFTConfig"
    return _parsed([getattr(library, kind), library.ModelConfig], values)


def llama_factory(values: Mapping[str, object]) -> dict[str, object]:
    """The dataclasses that `llamafactory-cli train` parses; it refuses names that none has."""
    from llamafactory import hparams
    from transformers import Seq2SeqTrainingArguments

    kinds = [
        hparams.ModelArguments,
        hparams.DataArguments,
        hparams.FinetuningArguments,
        hparams.GeneratingArguments,
        # Its own has FP8, since 0.9.4.
        getattr(hparams, "TrainingArguments", Seq2SeqTrainingArguments),
    ]
    return _parsed(kinds, values, strict=True)


def axolotl(values: Mapping[str, object]) -> dict[str, object]:
    """axolotl's own validation, with its own plugins, without what depends on the GPU."""
    from axolotl.utils.config import prepare_plugins, validate_config
    from axolotl.utils.dict import DictDefault

    settings = {"learning_rate": 1e-5, "datasets": [{"path": "x", "type": "alpaca"}], **values}
    asked = settings.pop("plugins", None)
    plugins = map(str, asked if isinstance(asked, list) else ())
    own = [name for name in plugins if name.startswith("axolotl.integrations.")]
    if own:
        settings["plugins"] = own
    try:
        config = DictDefault(settings)
        prepare_plugins(config)
        validated = validate_config(config).to_dict()
    except (ValueError, TypeError) as error:
        raise of_pydantic(error, "") from None
    return plain({name: value for name, value in validated.items() if value is not None})


def torchtune(values: Mapping[str, object]) -> dict[str, object]:
    """What `tune validate` checks, and the defaults of the function that builds the model.

    It imports the components that a file names, so those of other packages are left out.
    """
    from omegaconf import OmegaConf
    from torchtune import config
    from torchtune.config._errors import ConfigError, InstantiationError
    from torchtune.config._utils import _get_component_from_path

    components = tuple(_FACTS["torchtune_components"])

    def known(part: object) -> bool:
        name = part.get("_component_") if isinstance(part, Mapping) else None
        return name is None or str(name).startswith(components)

    settings = {name: part for name, part in values.items() if known(part)}
    try:
        config.validate(OmegaConf.create(settings))
    except (ConfigError, InstantiationError, ValueError, TypeError) as error:
        faults = getattr(error, "errors", None) or [error]
        raise _refusal(str(faults[0]), values) from None
    model = settings.get("model")
    builder = model.get("_component_") if isinstance(model, Mapping) else None
    if builder is None:
        return {}
    taken = inspect.signature(_get_component_from_path(builder)).parameters.values()
    defaults = {
        parameter.name: parameter.default
        for parameter in taken
        if parameter.default is not inspect.Parameter.empty
    }
    return {"model": plain(defaults)}


def _parsed(
    kinds: list[type[DataclassInstance]], values: Mapping[str, object], *, strict: bool = False
) -> dict[str, object]:
    """The values and defaults of dataclasses, as transformers' parser fills them.

    With `strict` a name that none of them has is a fault.
    """
    from transformers import HfArgumentParser

    names = {field.name for kind in kinds for field in dataclasses.fields(kind) if field.init}
    more = [key for key in values if key not in names]
    if strict and more:
        raise ParserError(more[0], f"{more[0]} is not a setting of it")
    aside = set(_FACTS["left_out"])
    given = {key: part for key, part in values.items() if key in names - aside}
    with tempfile.TemporaryDirectory() as folder:
        # On the CPU, or bf16 would be refused where there is no GPU.
        given |= {"output_dir": folder, "use_cpu": True, "report_to": []}
        try:
            objects = HfArgumentParser(kinds).parse_dict(given, allow_extra_keys=True)
        except (ValueError, TypeError) as error:
            raise _refusal(str(error), values) from None
    settings: dict[str, object] = {}
    for part in objects:
        fields = dataclasses.fields(part)
        settings |= {field.name: getattr(part, field.name, None) for field in fields}
    return plain({name: value for name, value in settings.items() if name not in aside})


def accelerate(values: Mapping[str, object]) -> dict[str, object]:
    """What `accelerate launch` loads from its file."""
    import yaml  # type: ignore[import-untyped]  # accelerate needs it
    from accelerate.commands.config.config_args import load_config_from_file

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(yaml.safe_dump(dict(values)))
        try:
            loaded = load_config_from_file(str(file)).to_dict()
        except (ValueError, TypeError, KeyError) as error:
            message = str(error).replace(f" at {file}", "").partition(", please try")[0]
            raise ParserError(_named(message, values), message) from None
    return plain(loaded)


def deepspeed(values: Mapping[str, object]) -> dict[str, object]:
    """DeepSpeed's own configuration, as for one GPU; "auto" is filled in by the Trainer."""
    from deepspeed.runtime.config import DeepSpeedConfig

    of_world = _FACTS["deepspeed_of_world"]
    settings = _without_auto(
        {name: value for name, value in values.items() if name not in of_world}
    )
    settings.setdefault("train_micro_batch_size_per_gpu", 1)
    try:
        DeepSpeedConfig(settings)
    except (ValueError, TypeError, AssertionError, KeyError) as error:
        head = _FACTS["deepspeed_parts"].get(str(getattr(error, "title", "")), "")
        fault = of_pydantic(error, head)
        raise ParserError(fault.setting or _named(str(fault), values), str(fault)) from None
    return {}


def _without_auto(values: Mapping[str, object]) -> dict[str, object]:
    return {
        name: _without_auto(value) if isinstance(value, Mapping) else value
        for name, value in values.items()
        if value != "auto"
    }


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
        answers = [_answer(request["format"], request["values"]) for request in asked]
    sys.stdout.write("\n" + json.dumps(answers) + "\n")
    return 0


def _answer(name: str, values: Mapping[str, object] | None) -> dict[str, object]:
    """`parser` is None if the library is not there; `fault` is what it refuses.

    `values` are None where only the release was asked for.
    """
    none: dict[str, object] = {"parser": None, "values": {}, "fault": None}
    if name not in PARSERS:
        return none
    parser, package = PARSERS[name]
    try:
        version = metadata.version(package)
        parsed = None if values is None else parser(values)
    except ParserError as error:
        fault = {"name": error.setting, "message": str(error)}
        return none | {"parser": f"{package} {version}", "fault": fault}
    except (ImportError, metadata.PackageNotFoundError, OSError, AttributeError):
        return none  # missing, broken, or a release that has moved its parser
    return none | {"parser": f"{package} {version}", "values": parsed}
