"""The monitor with a CPU build of torch: it says once that there is no GPU, and does nothing."""

from __future__ import annotations

import logging
import pickle

import pytest

torch = pytest.importorskip("torch")

from oomdoctor.monitor import MemoryCallback, watch_memory  # noqa: E402

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def test_a_loop_goes_on_with_one_note(caplog) -> None:
    caplog.set_level(logging.WARNING)
    with watch_memory(live=True) as memory:
        for _ in range(5):
            memory.step()
        assert memory.metrics() == {}
    assert memory.log_path is None
    assert [record.getMessage() for record in caplog.records] == [
        "oomdoctor: torch sees no CUDA GPU, so GPU memory is not watched"
    ]


class Classic(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (x * self.weight).mean()}


def test_a_trainer_trains_with_it(tmp_path, caplog) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    callback = MemoryCallback(warn_at=0.9, live=True)
    assert isinstance(callback, TrainerCallback) and isinstance(callback, MemoryCallback)
    trainer = Trainer(
        Classic(),
        TrainingArguments(tmp_path, max_steps=3, logging_steps=1, report_to=[], use_cpu=True),
        train_dataset=[{"x": torch.ones(1)}] * 8,
        callbacks=[callback],
    )
    assert trainer.callback_handler.callbacks[0] is callback
    assert trainer.train().global_step == 3
    assert sum("no CUDA GPU" in record.getMessage() for record in caplog.records) == 1
    assert not any("oomdoctor" in name for row in trainer.state.log_history for name in row)


def test_a_class_and_a_late_callback_work_too(tmp_path) -> None:
    from transformers import Trainer, TrainingArguments

    trainer = Trainer(
        Classic(),
        TrainingArguments(tmp_path, max_steps=1, report_to=[], use_cpu=True),
        train_dataset=[{"x": torch.ones(1)}] * 8,
        callbacks=[MemoryCallback],
    )
    late = MemoryCallback(metrics=False)
    trainer.remove_callback(MemoryCallback)
    trainer.add_callback(late)
    trainer.train()
    assert trainer.callback_handler.callbacks[0] is late


def test_a_callback_can_be_sent_to_another_process() -> None:
    again = pickle.loads(pickle.dumps(MemoryCallback(warn_at=0.5, metrics=False)))
    assert isinstance(again, MemoryCallback)
    assert again._options == {"warn_at": 0.5} and not again._metrics
