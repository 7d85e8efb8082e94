"""Functions of CUDA libraries that answer through pointers: sizes, descriptors, counts.

None may succeed and leave the caller with what happened to be in memory: a batch norm then asked
for 32 GiB, and an LSTM for 130,066 GiB.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from emulated_bench import MIB, Bench

from oomdoctor.emulator import build, generate
from oomdoctor.emulator.interpreter import ask

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
_LIBRARIES = (
    "cudnn",
    "cusolver",
    "cusparse",
    "cusparseLt",
    "cufft",
    "curand",
    "cublas",
    "cublasLt",
)


@pytest.fixture(scope="module")
def told(bench: Bench) -> dict[str, Any]:
    """What one process saw on one A100."""
    return bench.run(
        """
        import torch.nn as nn

        def peak(run):
            run()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            run()
            return torch.cuda.max_memory_allocated() - before

        def trained(net, *shape, dtype=torch.float32, memory_format=torch.contiguous_format):
            net = net.cuda()
            x = torch.randn(*shape, device="cuda").contiguous(memory_format=memory_format)
            mixed = dtype is not torch.float32
            def step():
                with torch.autocast("cuda", dtype=torch.float16, enabled=mixed):
                    out = net(x)
                    out = out[0] if isinstance(out, tuple) else out
                out.float().square().mean().backward()
                net.zero_grad()
            return peak(step)

        def conv_and_norm():
            return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16))

        images = (32, 3, 64, 64)
        tell(norm=trained(conv_and_norm(), *images))
        tell(norm_16=trained(conv_and_norm(), *images, dtype=torch.float16))
        tell(norm_last=trained(conv_and_norm(), *images, dtype=torch.float16,
                               memory_format=torch.channels_last))
        sizes = {}
        for name in ("RNN", "LSTM", "GRU"):
            for options in ({}, {"num_layers": 3, "bidirectional": True, "dropout": 0.1}):
                net = getattr(nn, name)(64, 128, batch_first=True, **options)
                count = sum(p.numel() for p in net.parameters())
                net = net.cuda()
                flat = net._flat_weights[0].untyped_storage().nbytes()
                sizes[f"{name} {len(options)}"] = [count * 4, flat, trained(net, 16, 50, 64)]
        net = nn.LSTM(64, 128, proj_size=32, num_layers=2, batch_first=True)
        count = sum(p.numel() for p in net.parameters())
        net = net.cuda()
        flat = net._flat_weights[0].untyped_storage().nbytes()
        sizes["LSTM projected"] = [count * 4, flat, trained(net, 16, 50, 64)]
        tell(recurrent=sizes)

        a = torch.randn(512, 256, device="cuda")
        s = a.T @ a
        sparse = s.to_sparse_csr()
        failed = {}
        for name, run in {
            "svd": lambda: torch.linalg.svd(a, full_matrices=False),
            "svd of many": lambda: torch.linalg.svd(torch.randn(64, 32, 32, device="cuda")),
            "qr": lambda: torch.linalg.qr(a),
            "cholesky": lambda: torch.linalg.cholesky(s),
            "eigh": lambda: torch.linalg.eigh(s),
            "eigvals": lambda: torch.linalg.eigvals(s),
            "lstsq": lambda: torch.linalg.lstsq(a, a),
            "pinv": lambda: torch.linalg.pinv(a),
            "inverse": lambda: torch.linalg.inv(s),
            "solve": lambda: torch.linalg.solve(s, s),
            "ldl": lambda: torch.linalg.ldl_factor(s),
            "lu": lambda: torch.linalg.lu_factor(s),
            "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(
                nn.Linear(64, 64).cuda())(torch.randn(2, 64, device="cuda")),
            "fft": lambda: torch.fft.fft2(a),
            "csr x dense": lambda: sparse @ s,
            "csr x vector": lambda: sparse @ s[0],
            "csr x csr": lambda: sparse @ sparse,
            "csr + csr": lambda: sparse + sparse,
            "coo x dense": lambda: torch.sparse.mm(s.to_sparse(), s),
            "coalesce": lambda: s.to_sparse().coalesce(),
            "2:4": lambda: torch.sparse.to_sparse_semi_structured(s.half()) @ s.half(),
            "ctc": lambda: nn.functional.ctc_loss(
                torch.randn(50, 8, 20, device="cuda", requires_grad=True).log_softmax(2),
                torch.randint(1, 20, (80,), dtype=torch.int), (50,) * 8, (10,) * 8).backward(),
            "dropout of RNNs": lambda: nn.LSTM(8, 8, 2, dropout=0.5).cuda()(
                torch.randn(5, 3, 8, device="cuda")),
        }.items():
            try:
                run()
            except Exception as error:
                failed[name] = str(error)[:200]
        tell(failed=failed, whole=torch.cuda.max_memory_reserved())
        """
    )


def test_a_batch_norm_needs_a_few_megabytes(told: dict[str, Any]) -> None:
    """Two outputs of 32 x 16 x 64 x 64 and their gradients, and what the loss makes of them."""
    output = 32 * 16 * 64 * 64 * 4
    assert 3 * output <= told["norm"] <= 6 * output + MIB
    # The batch norm itself is in 32 bits, and the convolution's weight and input are cast.
    assert told["norm_16"] <= told["norm"] + 2 * MIB
    assert told["norm_last"] <= told["norm"] + 2 * MIB


def test_weights_of_recurrent_networks_are_exact(told: dict[str, Any]) -> None:
    for name, (parameters, flat, peak) in told["recurrent"].items():
        assert flat == parameters, name
        assert parameters < peak < parameters + 100 * MIB, name


def test_linear_algebra_and_sparse_products_run(told: dict[str, Any]) -> None:
    assert told["failed"] == {}
    assert told["whole"] < 200 * MIB


def test_no_function_that_answers_through_a_pointer_is_left_to_a_default(
    cuda_python: Path, tmp_path: Path
) -> None:
    """Of those that the installed torch calls; others fail, so that their caller says so."""
    interpreter = ask(cuda_python)
    assert interpreter.torch is not None
    libraries = generate.libraries(interpreter.torch, interpreter.packages)
    (tmp_path / "versions.h").write_text(build._versions(interpreter, interpreter.torch))
    checked = 0
    for library in (one for one in libraries if one.name in _LIBRARIES):
        own = _defined(library, tmp_path)
        called = set().union(*library.symbols.values())
        open_ends = {name for name in called - own if generate.answers(name)}
        assert not open_ends, library.file
        checked += len({name for name in called if generate.answers(name)})
    assert checked > 100


def _defined(library: generate.Library, folder: Path) -> set[str]:
    objects = []
    for source in generate.stand_ins()["sources"].get(library.name, ("small.c",)):
        objects.append(str(folder / f"{library.name}.{source}.o"))
        define = f"-DLIB_{re.sub(r'[^a-zA-Z]', '_', library.name)}"
        paths = [f"-I{folder}", f"-I{build.NATIVE}", str(build.NATIVE / source)]
        subprocess.run(
            ["cc", "-w", "-fPIC", "-std=gnu11", define, "-c", *paths, "-o", objects[-1]], check=True
        )
    listing = subprocess.run(
        ["nm", "--defined-only", *objects], capture_output=True, text=True, check=True
    )
    return {words[2] for line in listing.stdout.splitlines() if len(words := line.split()) == 3}
