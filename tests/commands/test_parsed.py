"""The libraries of an interpreter check settings, in one process for all files."""

from __future__ import annotations

import sys

import pytest

from oomdoctor.commands.user_training import checked
from oomdoctor.errors import OomDoctorError
from oomdoctor.records.report.user_training import Document
from oomdoctor.stacks.reading.finish import finished
from oomdoctor.stacks.reading.merge import draft_of


def test_without_the_libraries_files_are_read_by_published_names() -> None:
    document = Document("a.yaml", {"optim": "sgd"}, asked="trainer")
    assert checked([document], "/bin/false") == (document,)
    assert checked([document], "/no/such/python") == (document,)


@pytest.mark.slow
def test_defaults_are_those_of_the_installed_libraries() -> None:
    pytest.importorskip("trl")
    training = {"use_peft": True, "packing": True, "bf16": True}
    launcher = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "NO"}
    tuned = {"batch_size": 2}
    documents = checked(
        [
            Document("sft.yaml", training, asked="trl"),
            Document("accelerate.yaml", launcher, asked="accelerate"),
            Document("tune.yaml", tuned, asked="torchtune"),
        ],
        sys.executable,
    )
    first, second, third = documents
    assert first.parser is not None
    assert first.parser.startswith("trl ")
    assert first.effective["per_device_train_batch_size"] == 8
    assert second.parser is not None
    assert third.parser is None
    assumed = {one.key: one.reason for one in finished(draft_of(documents[:2]), dict).assumed}
    assert assumed["micro_batch_size"] == f"the default of {first.parser}"


@pytest.mark.slow
def test_what_a_library_refuses_is_an_error_with_its_line() -> None:
    documents = [
        Document("acc.yaml", {"compute_environment": "LOCAL_MACHINE", "distributed_type": "NO",
                              "bogus": 1}, {"bogus": 7}, "accelerate"),
    ]  # fmt: skip
    with pytest.raises(OomDoctorError, match=r"acc\.yaml:7: .*unknown keys.*bogus.*\(accelerate"):
        checked(documents, sys.executable)
    documents = [Document("a.yaml", {"optim": "adamw_bogus"}, {"optim": 3}, "trainer")]
    with pytest.raises(OomDoctorError, match=r"a\.yaml:3: optim: adamw_bogus is not a valid"):
        checked(documents, sys.executable)
