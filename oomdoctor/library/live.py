"""A training as objects of transformers, TRL and peft, written as the script that makes them.

`--from` reads scripts without running them, so the objects get the same answer as the user's own
script would. Only settings that are not the library's default are written. Nothing is imported for
it: the caller has imported what the objects are of.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from oomdoctor.errors import OomDoctorError, usage_error
from oomdoctor.library.later import Evaluated
from oomdoctor.records.job.model import ModelRef, SourceChoice
from oomdoctor.stacks.programs.trl import CONFIGS
from oomdoctor.system.models.hub import resolve

_PLAIN = "TrainingArguments"
_OF_THIS_MACHINE = ("use_cpu", "no_cuda")  # without a GPU, arguments can be made only with these
_TOKENS, _LABELS = "input_ids", "labels"  # columns of a data set
_OF_PEFT = ("peft_type", "peft_version")  # what peft says of its own class
_BNB = ("load_in_", "bnb_4bit_", "llm_int8_")


@dataclasses.dataclass(frozen=True, slots=True)
class Training:
    """What `estimate` was given, as far as it is there; `model` is a name or an object."""

    model: Any
    args: Any
    peft_config: Any
    quantization_config: Any


def training_of(
    model: Any, args: Any, peft_config: Any = None, quantization_config: Any = None
) -> Training:
    """The parts of a training; those of a Trainer, where `model` is one.

    Raises:
        OomDoctorError: there is no model that can be planned, or no settings (exit 2).
    """
    if hasattr(model, "args") and hasattr(model, "model") and hasattr(model, "train"):
        model, args = model.model, args or model.args
    if args is None:
        raise usage_error(
            "no_arguments",
            "estimate() needs the settings of the training",
            "pass TrainingArguments, an SFTConfig, a dict of settings, or a Trainer",
        )
    if not isinstance(model, str | Path):
        if not hasattr(getattr(model, "config", None), "to_dict"):
            raise usage_error(
                "no_model",
                f"{type(model).__name__} is not a model of transformers or peft",
                "pass one, a Hugging Face id, a folder with config.json, or a Trainer",
            )
        adapters = getattr(model, "peft_config", None)
        if peft_config is None and isinstance(adapters, Mapping) and adapters:
            peft_config = next(iter(adapters.values()))
        if hasattr(model, "get_base_model"):
            model = model.get_base_model()
        if quantization_config is None:
            quantization_config = getattr(model.config, "quantization_config", None)
    return Training(model, args, peft_config, quantization_config)


def write_script(training: Training, folder: Path) -> Path:
    """The script that makes the objects, in a folder; with config.json of a model's object.

    Raises:
        OomDoctorError: the arguments are of a class that no Trainer takes (exit 2).
    """
    config, settings = _arguments(training.args)
    trainer = f"{config.removesuffix('Config')}Trainer" if config != _PLAIN else "Trainer"
    lines = [
        "import torch",
        f"model = {_model(training, folder)}",
        f"args = {config}({_keywords(settings)})",
    ]
    if training.peft_config is not None:
        adapters = training.peft_config
        values = {name: value for name, value in _changed(adapters) if name not in _OF_PEFT}
        kind = type(adapters).__name__
        lines.append(f"model = get_peft_model(model, {kind}({_keywords(values)}))")
    if layers := _frozen_layers(training):
        lines.append(f"freeze(model, layers={layers})")
    lines.append(f"{trainer}(model=model, args=args).train()")
    script = folder / "training.py"
    script.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return script


def config_of(training: Training) -> Mapping[str, Any] | None:
    """The config.json of the model; None if it is only named, and not built in or a folder."""
    model = training.model
    if not isinstance(model, str | Path):
        return dict(model.config.to_dict())
    with suppress(OomDoctorError):
        return resolve(ModelRef(name=str(model), source=_source_of(Path(model)))).config
    return None


def _source_of(path: Path) -> SourceChoice:
    return "local" if path.expanduser().is_dir() else "catalogue"


def frozen_otherwise(training: Training) -> bool:
    """Whether parameters of the model are frozen by hand that no configuration can name."""
    return _frozen_layers(training) is None


def _frozen_layers(training: Training) -> int | None:
    """How many layers from the first on are frozen, with the embeddings; None if others are.

    0 if all parameters are trained, or if adapters are.
    """
    model = training.model
    if isinstance(model, str | Path) or training.peft_config is not None:
        return 0
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    if not frozen:
        return 0
    stacks = [(name, module) for name, module in model.named_modules()
              if type(module).__name__ == "ModuleList"]  # fmt: skip
    _, layers = max(stacks, key=lambda pair: len(pair[1]), default=("", ()))
    embeddings = model.get_input_embeddings()
    expected = {id(parameter) for parameter in embeddings.parameters()}
    count = 0
    for layer in layers:
        if any(parameter.requires_grad for parameter in layer.parameters()):
            break
        expected |= {id(parameter) for parameter in layer.parameters()}
        count += 1
    there = {id(parameter) for name, parameter in model.named_parameters() if name in frozen}
    return count if there == expected and count else None


def row_length(rows: Any, training: Training) -> int | None:
    """The tokens of the longest row as the step has it; None if the data set does not say it.

    An encoder-decoder's step has a target as long as its source, so the longer of both counts.
    """
    longest = longest_row(rows)
    if longest is None:
        return None
    if _has_target(training):
        longest = max(longest, longest_row(rows, _LABELS) or 0)
    multiple = setting(training.args, "pad_to_multiple_of")
    if isinstance(multiple, int) and multiple > 0:
        longest = -(-longest // multiple) * multiple
    most = setting(training.args, "max_length")
    return min(longest, most) if isinstance(most, int) else longest


def target_length(trainer: Any, training: Training) -> int | None:
    """The tokens of the longest labels that an encoder-decoder is trained on; None of others."""
    if not _has_target(training):
        return None
    return longest_row(getattr(trainer, "train_dataset", None), _LABELS)


def _has_target(training: Training) -> bool:
    """Whether the model is an encoder-decoder."""
    return bool(getattr(getattr(training.model, "config", None), "is_encoder_decoder", False))


def setting(args: Any, name: str) -> Any:
    """A setting of an object or of a dict; None if it has none of this name."""
    return args.get(name) if isinstance(args, Mapping) else getattr(args, name, None)


def evaluated_by(trainer: Any) -> tuple[Evaluated, ...]:
    """The data sets that a Trainer evaluates; a dict has several. None of what is no Trainer."""
    sets = getattr(trainer, "eval_dataset", None)
    if sets is None:
        return ()
    metrics = getattr(trainer, "compute_metrics", None) is not None
    shortened = getattr(trainer, "preprocess_logits_for_metrics", None) is not None
    return tuple(
        Evaluated(
            rows=len(rows) if hasattr(rows, "__len__") else None,
            longest=longest_row(rows),
            target=longest_row(rows, _LABELS),
            keeps_logits=metrics and not shortened,
        )
        for rows in (sets.values() if isinstance(sets, Mapping) else (sets,))
    )


def longest_row(rows: Any, column: str = _TOKENS) -> int | None:
    """The tokens of the longest row of a data set; None if it has no tokens, or no end."""
    if rows is None or not hasattr(rows, "__len__") or not len(rows):
        return None
    if column in (getattr(rows, "column_names", None) or ()):
        return _longest_in_table(rows, column)
    longest = 0
    for number in range(len(rows)):
        row = rows[number]
        ids = row.get(column) if isinstance(row, Mapping) else None
        if ids is None or not hasattr(ids, "__len__"):
            return None
        longest = max(longest, len(ids))
    return longest or None


def _longest_in_table(rows: Any, column: str) -> int | None:
    """The same of a data set of datasets, without a Python object for each token."""
    import pyarrow as pa  # which datasets has
    import pyarrow.compute as pc

    tokens = rows.select_columns([column]).with_format("arrow")
    parts = [part.column(column) for part in tokens.iter(batch_size=1000)]
    if not all(pa.types.is_list(part.type) or pa.types.is_large_list(part.type) for part in parts):
        return None  # such as labels of a classification
    return max(pc.max(pc.list_value_length(part)).as_py() or 0 for part in parts) or None


def _arguments(args: Any) -> tuple[str, Mapping[str, Any]]:
    """The class of the arguments, by the name that `--from` knows, and what is set."""
    if isinstance(args, Mapping):
        return _PLAIN, args
    names = [kind.__name__ for kind in type(args).__mro__]
    named = next((name for name in names if name in CONFIGS or name == _PLAIN), None)
    if named is None or not dataclasses.is_dataclass(args):
        raise usage_error(
            "no_arguments",
            f"{names[0]} is not a class of settings that oomdoctor can plan",
            f"pass {_PLAIN}, one of {', '.join(CONFIGS)}, or a dict of settings",
        )
    return named, dict(_changed(args))


def _changed(record: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a dataclass that are not as they are by default."""
    for field in dataclasses.fields(record):
        value = getattr(record, field.name, None)
        usual = field.default
        if field.default_factory is not dataclasses.MISSING:
            usual = field.default_factory()
        here_alone = field.name in _OF_THIS_MACHINE
        if field.init and value is not None and value != usual and not here_alone:
            yield field.name, value


def _model(training: Training, folder: Path) -> str:
    """The call that loads the model."""
    model, quantized = training.model, training.quantization_config
    keywords: dict[str, Any] = {}
    kind = "AutoModelForCausalLM"
    if isinstance(model, str | Path):
        path = Path(model).expanduser()
        name = str(path.resolve()) if path.is_dir() else str(model)
    else:
        kind, name = type(model).__name__, str(_with_config(model, folder))
        keywords["dtype"] = model.dtype
    parts = [json.dumps(name), *_written(keywords)]
    if quantized is not None:
        said = quantized if isinstance(quantized, Mapping) else quantized.to_dict()
        own = {key: value for key, value in said.items() if key.startswith(_BNB)}
        parts.append(f"quantization_config=BitsAndBytesConfig({_keywords(own)})")
    return f"{kind}.from_pretrained({', '.join(parts)})"


def _with_config(model: Any, folder: Path) -> Path:
    """A folder with the config.json of a model's object."""
    config = model.config.to_dict()
    config["architectures"] = [type(model).__name__]
    config.pop("quantization_config", None)
    made = folder / "model"
    made.mkdir()
    text = json.dumps(config, default=_plain)
    (made / "config.json").write_text(text, encoding="utf-8")
    return made


def _keywords(settings: Mapping[str, Any]) -> str:
    return ", ".join(_written(settings))


def _written(settings: Mapping[str, Any]) -> Iterator[str]:
    """`name=value` for each value that a script can spell."""
    for name, value in settings.items():
        text = _literal(value)
        if text is not None:
            yield f"{name}={text}"


def _literal(value: Any) -> str | None:
    """A value as Python spells it; None for an object."""
    if isinstance(value, enum.Enum):
        value = value.value
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, set | frozenset):
        value = sorted(value)
    if isinstance(value, Sequence):
        items = [_literal(item) for item in value]
        return None if None in items else f"[{', '.join(map(str, items))}]"
    if isinstance(value, Mapping):
        pairs = [(_literal(key), _literal(item)) for key, item in value.items()]
        whole = all(None not in pair for pair in pairs)
        return f"{{{', '.join(f'{key}: {item}' for key, item in pairs)}}}" if whole else None
    text = str(value)
    return text if text.startswith("torch.") and text.isprintable() else None  # a dtype


def _plain(value: Any) -> str:
    """A value of a config that JSON does not have, such as a dtype."""
    return str(value).removeprefix("torch.")
