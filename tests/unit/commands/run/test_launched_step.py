"""The names of kernels in the report of a step on the emulated card."""

from __future__ import annotations

import pytest

from oomdoctor.commands.run.launched_step import demangled, name_of_kernel


@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        ("_ZN2at6native12_GLOBAL__N_110cat_kernelIfEEvPT_i", "at::native::cat_kernel"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
    ],
)
def test_a_kernel_has_its_name_without_its_parameters(mangled: str, name: str) -> None:
    if mangled.startswith("_Z") and demangled(mangled) == mangled:
        pytest.skip("libstdc++ is not there to tell names")
    assert name_of_kernel(mangled) == name
