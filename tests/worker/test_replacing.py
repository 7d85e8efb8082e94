"""What a simulation replaces in a library is as it was afterwards."""

from __future__ import annotations

import pytest

from oomdoctor.worker.replacing import replaced, restored


class Base:
    size = 1

    @staticmethod
    def double(value: int) -> int:
        return 2 * value


class Derived(Base):
    pass


def test_an_attribute_is_back_after_the_context() -> None:
    with replaced(Base, "size", 2):
        assert Base.size == Derived.size == 2
    assert Base.size == 1


def test_an_attribute_is_back_after_an_error() -> None:
    with pytest.raises(ValueError, match="inside"), replaced(Base, "size", 2):
        raise ValueError("inside")
    assert Base.size == 1


def test_an_inherited_attribute_is_inherited_again() -> None:
    with replaced(Derived, "size", 2):
        assert (Base.size, Derived.size) == (1, 2)
    assert "size" not in vars(Derived)


def test_a_static_method_stays_one() -> None:
    with replaced(Base, "double", staticmethod(lambda value: 3 * value)):
        assert Base().double(2) == 6
    assert Base().double(2) == 4


def test_a_name_that_a_library_no_longer_has_is_an_error() -> None:
    with pytest.raises(AttributeError, match="gone"), replaced(Base, "gone", 1):
        pass
    assert not hasattr(Base, "gone")


def test_entries_that_were_changed_or_added_are_undone() -> None:
    table = {"a": 1, "b": 2}
    with restored(table, {"a": 5}):
        assert table == {"a": 5, "b": 2}
        table["c"] = 3
        del table["b"]
    assert table == {"a": 1, "b": 2}
