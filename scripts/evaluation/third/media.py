"""Images with boxes and masks, and sounds with words, in the forms that the scripts read."""

from __future__ import annotations

import json
import random
import struct
import wave
import zlib
from pathlib import Path
from typing import Any

WIDTH, HEIGHT, PICTURES = 640, 480, 24
KINDS = ("cat", "dog", "kite")
RATE, SOUNDS = 16_000, 48
LABELS = {"id2label": {str(number): name for number, name in enumerate(KINDS)}}
SOUND = {"feature_size": 1, "sampling_rate": RATE, "padding_value": 0.0, "do_normalize": True}
# Configs that are transformers' defaults: ViT-B/16, wav2vec 2.0 base, SegFormer-B0, DETR with an
# untrained ResNet-50, Whisper tiny. Each with what prepares its inputs.
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "vit": (
        {"model_type": "vit", "architectures": ["ViTForImageClassification"]},
        {"image_processor_type": "ViTImageProcessor"},
    ),
    "wav2vec2": (
        {"model_type": "wav2vec2", "architectures": ["Wav2Vec2ForPreTraining"]},
        {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "return_attention_mask": True}
        | SOUND,
    ),
    "segformer": (
        {"model_type": "segformer", "architectures": ["SegformerForSemanticSegmentation"]} | LABELS,
        {"image_processor_type": "SegformerImageProcessor"},
    ),
    "detr": (
        {
            "model_type": "detr",
            "architectures": ["DetrForObjectDetection"],
            "use_timm_backbone": True,
            "backbone": "resnet50",
            "use_pretrained_backbone": False,
            **LABELS,
        },
        {"image_processor_type": "DetrImageProcessor"},
    ),
    "whisper": (
        {
            "model_type": "whisper",
            "architectures": ["WhisperForConditionalGeneration"],
            "vocab_size": 51865,
            "is_encoder_decoder": True,
            "decoder_start_token_id": 50258,
            "bos_token_id": 50257,
            "eos_token_id": 50257,
            "pad_token_id": 50256,
        },
        {
            "feature_extractor_type": "WhisperFeatureExtractor",
            "processor_class": "WhisperProcessor",
        },
    ),
}


def make(folder: Path, words: list[str]) -> None:
    """Fill `folder` with three data sets; the same at each call."""
    chance = random.Random(13)
    _coco(folder / "coco", chance)
    _boxes(folder / "beside" / "third" / "boxes", chance)
    _masks(folder / "beside" / "third" / "masks", chance)
    snapshot = folder / "hub" / "datasets--third--masks" / "snapshots" / "made"
    snapshot.mkdir(parents=True)
    (snapshot / "id2label.json").write_text(json.dumps(dict(enumerate(KINDS))))
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("made")
    _sounds(folder / "sounds", words, chance)
    _captioned(folder / "kohya", words, random.Random(17))
    for name in MODELS:
        _model(folder / name, name)
    # A script that takes a folder for a checkpoint to resume from finds it by the name of a hub.
    hub = folder / "hub" / "models--third--wav2vec2"
    _model(hub / "snapshots" / "made", "wav2vec2")
    (hub / "refs").mkdir()
    (hub / "refs" / "main").write_text("made")


def _model(folder: Path, name: str) -> None:
    config, processor = MODELS[name]
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))


def png(width: int, height: int, pixels: bytes, *, kind: int = 2) -> bytes:
    """A file of `pixels`, row by row; `kind` 2 has three bytes a pixel, 0 has one."""

    def chunk(name: bytes, data: bytes) -> bytes:
        crc = struct.pack(">I", zlib.crc32(name + data))
        return struct.pack(">I", len(data)) + name + data + crc

    row = len(pixels) // height
    lines = b"".join(b"\0" + pixels[at : at + row] for at in range(0, len(pixels), row))
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(lines))
    return b"\x89PNG\r\n\x1a\n" + header + data + chunk(b"IEND", b"")


def _picture(file: Path, chance: random.Random) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(png(WIDTH, HEIGHT, chance.randbytes(3) * (WIDTH * HEIGHT)))


def _box(chance: random.Random) -> list[int]:
    """Left, top, width and height."""
    width, height = chance.randint(40, 300), chance.randint(40, 300)
    return [chance.randint(0, WIDTH - width), chance.randint(0, HEIGHT - height), width, height]


def _coco(folder: Path, chance: random.Random) -> None:
    """Pictures and boxes as COCO's files have them, each box also as a polygon."""
    (folder / "annotations").mkdir(parents=True)
    for split in ("train2017", "val2017"):
        images, boxes = [], []
        for number in range(1, PICTURES + 1):
            name = f"{number:012}.png"
            _picture(folder / split / name, chance)
            images.append({"id": number, "file_name": name, "width": WIDTH, "height": HEIGHT})
            for _ in range(chance.randint(1, 6)):
                x, y, width, height = box = _box(chance)
                corners = [x, y, x + width, y, x + width, y + height, x, y + height]
                boxes.append(
                    {
                        "id": len(boxes) + 1,
                        "image_id": number,
                        "category_id": chance.randint(1, 90),
                        "bbox": box,
                        "area": width * height,
                        "segmentation": [corners],
                        "iscrowd": 0,
                    }
                )
        kinds = [{"id": kind, "name": str(kind)} for kind in range(1, 91)]
        said = {"images": images, "annotations": boxes, "categories": kinds}
        file = folder / "annotations" / f"instances_{split}.json"
        file.write_text(json.dumps(said))


def _boxes(folder: Path, chance: random.Random) -> None:
    """The same with the columns of a data set of the hub, found by a path from `beside`."""
    for split in ("train", "validation", "test"):
        rows = []
        for number in range(PICTURES):
            file = folder / split / f"{number}.png"
            _picture(file, chance)
            boxes = [_box(chance) for _ in range(chance.randint(1, 6))]
            objects = {
                "id": list(range(len(boxes))),
                "bbox": [[float(side) for side in box] for box in boxes],
                "category": [chance.randrange(len(KINDS)) for _ in boxes],
                "area": [float(width * height) for _, _, width, height in boxes],
            }
            row = {"image": str(file.relative_to(folder.parents[1])), "image_id": number}
            rows.append(row | {"objects": objects, "width": WIDTH, "height": HEIGHT})
        _write(folder / f"{split}.jsonl", rows)
    (folder / "README.md").write_text(BOXES)


def _captioned(folder: Path, words: list[str], chance: random.Random) -> None:
    """Images next to their texts, each once an epoch, and CLIP's tokenizer with letters alone."""
    photos = folder / "photos" / "1_photo"
    photos.mkdir(parents=True)
    for number in range(8):
        _picture(photos / f"{number}.png", chance)
        (photos / f"{number}.txt").write_text(" ".join(chance.choice(words) for _ in range(8)))
    letters = sorted({letter for word in words for letter in word})
    vocabulary = {part: i for i, part in enumerate([*letters, *(f"{one}</w>" for one in letters)])}
    vocabulary |= {"<|startoftext|>": 49406, "<|endoftext|>": 49407}
    for name in ("openai_clip-vit-large-patch14", "laion_CLIP-ViT-bigG-14-laion2B-39B-b160k"):
        tokenizer = folder / "tokenizers" / name
        tokenizer.mkdir(parents=True)
        (tokenizer / "vocab.json").write_text(json.dumps(vocabulary))
        (tokenizer / "merges.txt").write_text("#version: 0.2\n")
        (tokenizer / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 77}))


def _masks(folder: Path, chance: random.Random) -> None:
    """Pictures with a mask each, of as many classes as `KINDS`."""
    for split in ("train", "validation"):
        rows = []
        for number in range(PICTURES):
            _picture(folder / split / f"{number}.png", chance)
            mask = b"".join(bytes([chance.randrange(len(KINDS))]) * WIDTH for _ in range(HEIGHT))
            (folder / split / f"{number}_mask.png").write_bytes(png(WIDTH, HEIGHT, mask, kind=0))
            names = {"image_file_name": f"{number}.png", "label_file_name": f"{number}_mask.png"}
            rows.append(names)
        _write(folder / split / "metadata.jsonl", rows)


def _sounds(folder: Path, words: list[str], chance: random.Random) -> None:
    """Noise of one to twelve seconds: with a text, and by the names of folders in two classes."""
    for split in ("train", "validation"):
        rows = []
        for number in range(SOUNDS):
            seconds = chance.randint(1, 12)
            noise = chance.randbytes(2 * RATE * seconds)
            _sound(folder / "spoken" / split / f"{number}.wav", noise)
            _sound(folder / "classes" / split / KINDS[number % 2] / f"{number}.wav", noise)
            text = " ".join(chance.choice(words) for _ in range(3 * seconds))
            rows.append({"file_name": f"{number}.wav", "text": text})
        _write(folder / "spoken" / split / "metadata.jsonl", rows)


def _sound(file: Path, samples: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(file), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(RATE)
        sound.writeframes(samples)


def _write(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


BOXES = """---
configs:
- config_name: default
  data_files:
  - split: train
    path: train.jsonl
  - split: validation
    path: validation.jsonl
  - split: test
    path: test.jsonl
dataset_info:
  features:
  - name: image
    dtype: image
  - name: image_id
    dtype: int64
  - name: objects
    struct:
    - name: id
      sequence: int64
    - name: bbox
      sequence:
        sequence: float32
    - name: category
      sequence:
        class_label:
          names:
            '0': cat
            '1': dog
            '2': kite
    - name: area
      sequence: float64
  - name: width
    dtype: int32
  - name: height
    dtype: int32
---
"""
