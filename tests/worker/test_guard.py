"""`guard` with errors that are raised by hand: torch has no GPU here, and needs none for this."""

from __future__ import annotations

import logging
import weakref

import pytest

torch = pytest.importorskip("torch")

from oomdoctor.monitor import DiagnosedOutOfMemoryError, guard  # noqa: E402

GIB = 2**30
MESSAGE = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.11 GiB of "
    "which 1.20 GiB is free. Including non-PyTorch memory, this process has 77.90 GiB memory in "
    "use. Of the allocated memory 70.00 GiB is allocated by PyTorch, and 7.20 GiB is reserved by "
    "PyTorch but unallocated."
)


def run_out() -> None:
    raise torch.OutOfMemoryError(MESSAGE)


def test_the_error_is_diagnosed() -> None:
    with pytest.raises(torch.OutOfMemoryError) as raised, guard():
        run_out()
    error = raised.value
    assert type(error) is DiagnosedOutOfMemoryError
    assert str(error).startswith(MESSAGE)
    assert "oomdoctor: out of GPU memory" in str(error)
    assert "\nDo this first: " in str(error) and "\nCause: " in str(error)
    assert "Other remedies:\n  2. " in str(error)
    assert error.diagnosis.numbers.requested_bytes == 2.5 * GIB
    assert isinstance(error.__cause__, torch.OutOfMemoryError)


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "Triton Error [CUDA]: out of memory",
    ],
)
def test_what_libraries_raise_in_words_counts_too(message: str) -> None:
    with pytest.raises(DiagnosedOutOfMemoryError), guard():
        raise RuntimeError(message)


@pytest.mark.parametrize("error", [RuntimeError("shape mismatch"), ValueError("x"), SystemExit(3)])
def test_other_errors_pass(error: BaseException) -> None:
    model = torch.nn.Linear(1, 1)
    for one in (guard(), guard(skip=True, model=model)):
        with pytest.raises(type(error)) as raised, one:
            raise error
        assert raised.value is error


def test_a_batch_is_skipped_and_what_it_held_is_freed(caplog) -> None:
    caplog.set_level(logging.WARNING)
    model = torch.nn.Linear(4, 4)
    other = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()])
    guarded = guard(skip=True, model=model, optimizer=optimizer)
    seen, skipped = [], []
    for batch in range(6):
        with guarded:
            loss = other(model(torch.randn(2, 4))).sum()
            seen.append(weakref.ref(loss))
            loss.backward()
            if batch in (1, 2, 4):
                run_out()
        skipped.append(guarded.skipped)
        if guarded.skipped:
            assert loss is None and seen[-1]() is None
            assert all(p.grad is None for p in (*model.parameters(), *other.parameters()))
            continue
        assert model.weight.grad is not None
        optimizer.step()
        optimizer.zero_grad()
    assert skipped == [False, True, True, False, True, False]
    assert (guarded.skips, guarded.in_a_row) == (3, 0)
    said = [r.getMessage() for r in caplog.records if "batch skipped" in r.getMessage()]
    assert len(said) == 3
    assert said[0].startswith("oomdoctor: batch skipped, 1 so far: out of GPU memory")


def test_too_many_in_a_row_are_an_error() -> None:
    guarded = guard(skip=True, model=torch.nn.Linear(1, 1), most_in_a_row=3)
    for _ in range(2):
        with guarded:
            run_out()
    with pytest.raises(DiagnosedOutOfMemoryError, match="in 3 batches in a row") as raised, guarded:
        run_out()
    assert raised.value.diagnosis is not None


def test_a_function_is_guarded_at_each_call() -> None:
    guarded = guard(skip=True, model=torch.nn.Linear(1, 1))

    @guarded
    def step(fails: bool) -> int:
        """Documented."""
        if fails:
            run_out()
        return 7

    assert [step(False), step(True), step(False)] == [7, None, 7]
    assert guarded.skips == 1 and step.__doc__ == "Documented."
    with pytest.raises(DiagnosedOutOfMemoryError):
        guard()(run_out)()


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="model="):
        guard(skip=True)
    with pytest.raises(ValueError, match="at least 1"):
        guard(skip=True, model=torch.nn.Linear(1, 1), most_in_a_row=0)
    one = guard()
    with one, pytest.raises(RuntimeError, match="twice"), one:
        pass
