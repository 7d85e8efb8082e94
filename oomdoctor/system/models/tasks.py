"""Decides which training task a config.json is for, from its text alone.

transformers cannot be imported here, so this uses the names of the architecture classes, a few keys
and the built-in models. The worker checks whether the installed transformers knows the class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from oomdoctor.errors import OomDoctorError, model_error
from oomdoctor.records.facts.architectures import HEADS, SOUND_KEYS, VISION_KEYS, WRITES_TEXT
from oomdoctor.records.job.model import ON_SOUND, ON_TEXT_ALONE, Task, TaskChoice
from oomdoctor.system.catalogue import causal_architectures, model_types


def architecture_of(config: Mapping[str, Any]) -> str:
    """The class that the config names, else its `model_type`."""
    named = config.get("architectures")
    if isinstance(named, list) and named:
        return str(named[0])
    return str(config.get("model_type", "unknown"))


OWN_SCRIPT = "run your own script: oomdoctor run --emulate CARD -- python train.py"
"""What works with any model that torch trains."""


def task_of(config: Mapping[str, Any], asked: TaskChoice) -> Task:
    """The task to train: `asked`, or with "auto" the one that the architecture was made for.

    Bare models without a head: a decoder gets causal-lm, an encoder-decoder seq2seq-lm, an image
    encoder image-classification, any other encoder embedding; an encoder that names no class gets
    sequence-classification.

    Raises:
        OomDoctorError: code "unsupported_task": the model takes other inputs, was made for another
            task, or its inputs do not fit the requested task.
    """
    if _takes_images_beside_text(config) and asked in ("auto", "image-text-to-text"):
        return "image-text-to-text"
    if asked == "image-text-to-text":
        raise _unsupported(config, "does not write text about images")
    classifies = architecture_of(config).endswith(HEADS["image-classification"])
    if classifies and asked in ("auto", "image-classification"):
        return "image-classification"
    task = _on_text_alone(config)
    if task == "seq2seq-lm" and other_input(config) == "sound" and asked == "auto":
        return "speech-seq2seq"
    if task is not None and asked in ("auto", task):
        return task
    if task == "seq2seq-lm" and asked == "speech-seq2seq":
        return asked
    if (heard := _on_sound(config)) and asked in ("auto", *ON_SOUND):
        return heard if asked == "auto" else asked
    if foreign := other_input(config):
        raise _unsupported(config, f"takes {foreign}, and is made for another task")
    if asked in ON_SOUND and not architecture_of(config).endswith(HEADS[asked]):
        raise _unsupported(config, f"takes other inputs than {asked} does")
    if asked == "auto":
        task = _made_for(config)
        if task is None:
            why = "is not made for any supported task"
            raise _unsupported(config, why, "; choose one with --task")
        return task
    if (asked == "image-classification") != _is_image(config):
        inputs = "images" if _is_image(config) else "text"
        raise _unsupported(config, f"takes {inputs}, so it cannot be trained for {asked}")
    if asked == "seq2seq-lm" and not _is_encoder_decoder(config):
        raise _unsupported(config, "has no encoder and decoder, so it cannot do seq2seq-lm")
    return asked


def _takes_images_beside_text(config: Mapping[str, Any]) -> bool:
    """Whether the model writes text and has an encoder for images; it may also have one for sound.

    The worker finds out how it takes images; with `images=0` a training is on text alone.
    """
    name, encoder = architecture_of(config), config.get("encoder")
    if not config.get("architectures"):
        return _has(config, VISION_KEYS) and "text_config" in config
    sees = _has(config, VISION_KEYS) or any(
        isinstance(part, Mapping) and _is_image(part) for part in (config, encoder)
    )
    return sees and name.endswith(WRITES_TEXT)


def _on_text_alone(config: Mapping[str, Any]) -> Task | None:
    """The task of a class that takes sound or more beside text, and can be trained without it.

    transformers counts those that write about sound as seq2seq-lm, although they have one decoder.
    """
    name, sees = architecture_of(config), _has(config, VISION_KEYS)
    tasks = [task for task in ON_TEXT_ALONE if not sees or task != "seq2seq-lm"]
    made_for = [task for task in tasks if name.endswith(HEADS[task])]
    return made_for[0] if made_for and "text_config" in config else None


def _on_sound(config: Mapping[str, Any]) -> Task | None:
    """The task of a model that takes sound; None for any other, and for one that makes sound.

    A class without a head of these writes, or has the labels of CTC.
    """
    if other_input(config) != "sound":
        return None
    name = architecture_of(config)
    if name.endswith((*HEADS["audio-classification"], *HEADS["sequence-classification"])):
        return "audio-classification"
    task: Task = "speech-seq2seq" if _is_encoder_decoder(config) else "ctc"
    without = name.endswith(("Model", "ForPreTraining")) or not config.get("architectures")
    return task if without or name.endswith(HEADS[task]) else None


def is_without_head(config: Mapping[str, Any]) -> bool:
    """Whether the class that the config names has no head, so that `task_of` has chosen one."""
    heads = tuple(end for ends in HEADS.values() for end in ends)
    name = architecture_of(config)
    return bool(config.get("architectures")) and name.endswith("Model") and not name.endswith(heads)


def is_causal(config: Mapping[str, Any]) -> bool:
    """Whether the class that the config names predicts the next token."""
    return architecture_of(config).endswith("ForCausalLM") and config.get("is_causal", True)


def other_input(config: Mapping[str, Any]) -> str | None:
    """ "sound" or "images as well as text", if the model takes them; else None."""
    name = architecture_of(config)
    within = "decoder_layers" in config or isinstance(config.get("decoder"), Mapping)
    decoder = name.endswith("ForCausalLM") and within  # such as Whisper's and MusicGen's
    parts = (config, config.get("encoder_config") or {}, config.get("encoder") or {})
    heard = any(_has(part, SOUND_KEYS) for part in parts if isinstance(part, Mapping))
    heard = heard or name.endswith((*HEADS["ctc"], *HEADS["audio-classification"]))
    if heard and not decoder and not name.endswith("ForTextToText"):
        return "sound"
    return "images as well as text" if _has(config, VISION_KEYS) else None


def _has(config: Mapping[str, Any], keys: tuple[str, ...]) -> bool:
    return any(config.get(key) is not None for key in keys)


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The language model inside a config of several models; None if there is none.

    The worker's transformers knows its class by its type, if none is named here.
    """
    text = config.get("text_config")
    if not isinstance(text, dict) or not isinstance(text.get("model_type"), str):
        return None
    own = architecture_of(text) if text.get("architectures") else None
    if own is None or not own.endswith(HEADS["causal-lm"]):
        own = causal_architectures().get(text["model_type"])
    part = {key: value for key, value in text.items() if key != "architectures"}
    part |= {} if own is None else {"architectures": [own]}
    if "tie_word_embeddings" in config:  # set by the whole model, not by its text part
        part.setdefault("tie_word_embeddings", config["tie_word_embeddings"])
    return part


def _made_for(config: Mapping[str, Any]) -> Task | None:
    name, bare = architecture_of(config), not config.get("architectures")
    tasks: tuple[Task, ...] = get_args(Task)
    for task in tasks:
        if name.endswith(HEADS[task]) and _possible(task, config):
            return task
    if not bare and not name.endswith("Model"):
        return None
    if bare and config.get("model_type") not in model_types():
        return None
    if _is_image(config):
        return "image-classification"
    if config.get("model_type") in causal_architectures():
        return "causal-lm"
    if _is_encoder_decoder(config):
        return "seq2seq-lm"
    return "sequence-classification" if bare else "embedding"


def _possible(task: Task, config: Mapping[str, Any]) -> bool:
    """Whether the inputs fit the task: old T5 files name the class T5WithLMHeadModel."""
    if task in ON_SOUND or (task == "image-classification") != _is_image(config):
        return False
    if task == "causal-lm" and architecture_of(config).endswith("ForCausalLM"):
        return True  # also the decoder of an encoder-decoder (BartForCausalLM)
    if task in ("causal-lm", "seq2seq-lm"):
        return (task == "seq2seq-lm") == _is_encoder_decoder(config)
    return True


def _is_image(config: Mapping[str, Any]) -> bool:
    """Whether the model takes images alone. BEiT counts its visual tokens as `vocab_size`."""
    text = "vocab_size" in config and "max_position_embeddings" in config
    beside = "vocab_size" in config and "patch_size" not in config
    return not text and not beside and ("image_size" in config or "num_channels" in config)


def _is_encoder_decoder(config: Mapping[str, Any]) -> bool:
    return config.get("is_encoder_decoder") is True


def _unsupported(config: Mapping[str, Any], why: str, more: str = "") -> OomDoctorError:
    hint = f"oomdoctor trains {', '.join(get_args(Task))}{more}"
    if text_part(config) is not None:
        hint += "; to train only the language model inside, add --task causal-lm"
    hint += f"; or {OWN_SCRIPT}"
    return model_error("unsupported_task", f"{architecture_of(config)} {why}", hint)
