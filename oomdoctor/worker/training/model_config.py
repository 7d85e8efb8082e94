"""The transformers configuration and Auto class of a model."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from oomdoctor.package_data import data_of
from oomdoctor.records.job.model import AUTO_CLASSES, ModelSpec, with_floats
from oomdoctor.worker.protocol import UnsupportedError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


def load_config(spec: ModelSpec) -> PretrainedConfig:
    """The transformers configuration of a model, without using the network.

    Raises:
        UnsupportedError: this transformers does not know the model type.
        ValueError: the configuration's class refuses the values; the text is its whole reason.
    """
    from transformers import AutoConfig

    with tempfile.TemporaryDirectory() as folder:
        place, revision = _config_place(spec, Path(folder))
        try:
            config = AutoConfig.from_pretrained(
                place, revision=revision, trust_remote_code=spec.trust_remote_code
            )
        except Exception as error:
            refusal = _refusal(spec, error)
            if refusal is None:
                raise
            raise refusal from error
    # The rung decides how weights are quantized, not the settings of the checkpoint.
    if getattr(config, "quantization_config", None) is not None:
        del config.quantization_config
    config = _part_of_class(config, spec)
    if spec.task == "embedding" and _has_own_encoder(config):
        config.is_encoder_decoder = False  # which some classes of encoders ask for
    text = config.get_text_config()
    if getattr(text, "pad_token_id", None) is None and spec.task == "sequence-classification":
        eos = getattr(text, "eos_token_id", None)
        is_token = isinstance(eos, int) and eos < getattr(text, "vocab_size", 0)
        text.pad_token_id = config.pad_token_id = eos if is_token else 0
    _keep_all_layers(config)
    return config


def _part_of_class(config: PretrainedConfig, spec: ModelSpec) -> PretrainedConfig:
    """The decoder's part of a configuration, if the model's class is that decoder (MusicGen)."""
    import transformers

    kind = getattr(getattr(transformers, spec.architecture, None), "config_class", None)
    decoder = getattr(config, "decoder", None)
    return decoder if kind is not None and type(decoder) is kind else config


def _keep_all_layers(config: PretrainedConfig) -> None:
    """Set the chance to drop a layer to 0 in all parts: the largest step is one that drops none."""
    from transformers import PretrainedConfig

    for name, value in vars(config).items():
        if isinstance(value, PretrainedConfig):
            _keep_all_layers(value)
        elif value and name.replace("_", "").endswith("layerdrop"):
            setattr(config, name, 0.0)


def _refusal(spec: ModelSpec, error: Exception) -> Exception | None:
    """Why transformers did not read a config.json, on one line; None for any other failure."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    reason = " ".join(str(error).split())
    if spec.model_type in CONFIG_MAPPING:
        return ValueError(f"transformers {transformers.__version__} refuses its values: {reason}")
    if not isinstance(error, KeyError | ValueError):
        return None
    if "trust_remote_code" in reason or spec.trust_remote_code:
        return UnsupportedError(reason)
    return UnsupportedError(
        f"transformers {transformers.__version__} does not know this model_type ({spec.model_type})"
    )


def _config_place(spec: ModelSpec, scratch: Path) -> tuple[str, str | None]:
    """Where transformers reads the configuration from, and the revision.

    The known content is written to a scratch folder. A model with custom code is read from where
    its code is.
    """
    if spec.trust_remote_code and "auto_map" in spec.config:
        has_code = spec.path is not None and any(Path(spec.path).glob("*.py"))
        return (spec.path or "", None) if has_code else (spec.id, spec.revision)
    config = _without_attention(with_floats(spec.config))
    (scratch / "config.json").write_text(json.dumps(config))
    return str(scratch), None


def _without_attention(config: object) -> object:
    """Without the implementation of attention: the rung names it, and that of a file may be code
    of the hub ("someone/kernel").
    """
    if not isinstance(config, dict):
        return config
    kept = {key: part for key, part in config.items() if not key.endswith("attn_implementation")}
    return {key: _without_attention(part) for key, part in kept.items()}


_VERSIONS: dict[str, str] = data_of("unsupported.toml")["packages"]


@contextmanager
def needed_package() -> Iterator[None]:
    """In this context, a missing package is a reason why the model cannot be built.

    Raises:
        UnsupportedError: with the package that the model needs.
    """
    try:
        yield
    except ImportError as error:
        required = re.search(r"requires the (\S+) library", str(error))
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        name = required[1] if required is not None else missing
        if name is None:
            raise
        versions = _VERSIONS.get(name, name)
        raise UnsupportedError(f"needs {name}: pip install {versions}") from error


class ModelClass(Protocol):
    """What makes a model of a configuration, as transformers' Auto classes do."""

    def from_config(self, config: PretrainedConfig, **settings: object) -> PreTrainedModel:
        """The model with random weights."""

    def from_pretrained(self, name: str | None, **settings: object) -> PreTrainedModel:
        """The model with the weights of a checkpoint."""


@dataclass(frozen=True, slots=True)
class _Named:
    """A model class that no Auto class of the task has."""

    kind: type[PreTrainedModel]

    def from_config(self, config: PretrainedConfig, **settings: object) -> PreTrainedModel:
        settings.pop("trust_remote_code", None)
        return self.kind._from_config(config, **settings)

    def from_pretrained(self, name: str | None, **settings: object) -> PreTrainedModel:
        return self.kind.from_pretrained(name, **settings)


def _has_own_encoder(config: PretrainedConfig) -> bool:
    """Whether transformers has a class for the encoder alone, of what has a decoder as well."""
    import transformers

    return type(config) in transformers.AutoModelForTextEncoding._model_mapping


def model_class(spec: ModelSpec, config: PretrainedConfig) -> ModelClass:
    """The transformers Auto class for a model and its task, or the class that the config names.

    Raises:
        UnsupportedError: transformers has neither.
    """
    import transformers

    auto: ModelClass = getattr(transformers, AUTO_CLASSES[spec.task])
    if spec.task == "embedding" and _has_own_encoder(config):
        auto = transformers.AutoModelForTextEncoding
    mapping = auto._model_mapping  # type: ignore[attr-defined]
    if type(config) in mapping or spec.trust_remote_code:
        return auto
    named = getattr(transformers, spec.architecture, None)
    own = getattr(named, "config_class", None)  # only models have one
    if named is not None and own is not None and isinstance(config, own):
        return _Named(named)
    release = f"transformers {transformers.__version__}"
    if spec.task == "causal-lm" and spec.model_type.endswith("_text"):
        raise UnsupportedError(
            f"{release} has no class for this language model alone ({spec.model_type}); leave out "
            "--task, and set images=0 in --rung to train on text with the vision encoder"
        )
    raise UnsupportedError(f"{release} has no {AUTO_CLASSES[spec.task]} for {spec.model_type}")
