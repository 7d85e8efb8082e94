"""The files of --from: what is read, and what is said about those that cannot be."""

from __future__ import annotations

import enum
import io
import pickle
import zipfile
from pathlib import Path

import pytest

from oomdoctor.errors import OomDoctorError
from oomdoctor.system.training_files import read_documents, split_program


def test_a_program_may_be_named_before_the_file() -> None:
    assert split_program("axolotl:train.yml") == ("axolotl", "train.yml")
    assert split_program("C:train.yml") == (None, "C:train.yml")
    assert split_program("train.yml") == (None, "train.yml")


def test_lines_are_by_dotted_path(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("a: 1\nb:\n  c: 2\n  d: [3]\n")
    (document,) = read_documents([str(file)])
    assert document.lines == {"a": 1, "b": 2, "b.c": 3, "b.d": 4}
    file = tmp_path / "a.json"
    file.write_text('{\n "a": 1,\n "b": {"c": 2}\n}\n')
    (document,) = read_documents([str(file)])
    assert document.lines["b.c"] == 3


def test_a_file_that_is_named_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    (tmp_path / "a.yaml").write_text("deepspeed: ds.json\nbf16: true\n")
    documents = read_documents([str(tmp_path / "a.yaml")])
    assert [one.asked for one in documents] == [None, "deepspeed"]
    both = read_documents([str(tmp_path / "a.yaml"), f"deepspeed:{tmp_path / 'ds.json'}"])
    assert len(both) == 2  # not twice
    (tmp_path / "a.yaml").write_text("deepspeed: gone.json\n")
    with pytest.raises(OomDoctorError, match=r"deepspeed names gone\.json"):
        read_documents([str(tmp_path / "a.yaml")])


@pytest.mark.parametrize(
    ("text", "message"),
    [("a: [1", "line 1"), ("just words", "has no settings"), ('{"a": 1,}', "line 1")],
)
def test_a_broken_file_names_the_option(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(text)
    with pytest.raises(OomDoctorError, match=message) as raised:
        read_documents([str(file)])
    assert raised.value.message.startswith("--from: ")
    assert "drop --from" in (raised.value.hint or "")


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OomDoctorError, match="No such file") as raised:
        read_documents([str(tmp_path / "none.yaml")])
    assert raised.value.hint == "check the path"
    with pytest.raises(OomDoctorError, match=r"none\.yaml") as raised:
        read_documents(["none.yaml"])
    assert raised.value.hint == f"check the path, from {Path.cwd()}"
    (tmp_path / "a.yaml").write_text("optim: sgd\n")
    with pytest.raises(OomDoctorError, match="foo is not a program") as raised:
        read_documents([f"foo:{tmp_path / 'a.yaml'}"])
    assert "torchtune" in (raised.value.hint or "")
    with pytest.raises(OomDoctorError, match=r"a folder without training_args\.bin"):
        read_documents([str(tmp_path)])


class Optimizer(enum.Enum):
    FUSED = "adamw_torch_fused"


class Arguments:
    """Stands in for transformers' TrainingArguments."""

    def __init__(self) -> None:
        self.per_device_train_batch_size = 4
        self.optim = Optimizer.FUSED
        self.output_dir = None
        self._n_gpu = 1


class Dangerous:
    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return print, ("this must not run", "at all")


def saved(path: Path, value: object) -> None:
    """A file as torch.save writes it."""
    buffer = io.BytesIO()
    pickle.Pickler(buffer, protocol=2).dump(value)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", buffer.getvalue())


def test_saved_arguments_are_read_without_their_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = Arguments()
    arguments.callback = Dangerous()  # type: ignore[attr-defined]
    saved(tmp_path / "training_args.bin", arguments)
    (tmp_path / "adapter_config.json").write_text('{"r": 8, "base_model_name_or_path": "m"}')
    (document,) = read_documents([str(tmp_path)])
    assert document.values == {
        "per_device_train_batch_size": 4,
        "optim": "adamw_torch_fused",
        "lora_r": 8,
        "model_name_or_path": "m",
        "use_peft": True,
    }
    assert capsys.readouterr().out == ""


def test_another_zip_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "training_args.bin").write_bytes(b"not a zip")
    with pytest.raises(OomDoctorError, match=r"not a training_args\.bin"):
        read_documents([str(tmp_path)])
