"""The emulated device under an unmodified CUDA build of torch."""

from __future__ import annotations

import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from emulated_bench import A100, GIB, H100, MIB, RTX_4090, Bench

from oomdoctor.emulator.card import Devices
from oomdoctor.emulator.enter import Session, entered
from oomdoctor.emulator.interpreter import find_compiler


@pytest.fixture(scope="module")
def told(bench: Bench) -> dict[str, Any]:
    """What one process on one A100 sees."""
    return bench.run(
        """
        p = torch.cuda.get_device_properties(0)
        tell(name=p.name, uuid=p.uuid, capability=[p.major, p.minor], total=p.total_memory,
             multiprocessors=p.multi_processor_count, l2=p.L2_cache_size,
             threads=p.max_threads_per_multi_processor, shared=p.shared_memory_per_block_optin,
             warp=p.warp_size, count=torch.cuda.device_count())
        free, total = torch.cuda.mem_get_info()
        tell(free_at_first=free, mem_total=total)
        x = torch.ones(1000, 1000, device="cuda")
        y = x @ x
        tell(allocated=torch.cuda.memory_allocated(), reserved=torch.cuda.memory_reserved())
        try:
            torch.empty(100 << 30, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            tell(message=str(error))
        del x, y
        torch.cuda.memory._record_memory_history(max_entries=1000)
        big = [torch.empty(3 << 30, dtype=torch.uint8, device="cuda") for _ in range(3)]
        snapshot = torch.cuda.memory._snapshot()
        tell(traced=len(snapshot["device_traces"][0]), segments=len(snapshot["segments"]))
        tell(addresses=[b.data_ptr() for b in big], free_after=torch.cuda.mem_get_info()[0])
        del big
        torch.cuda.empty_cache()
        g = torch.cuda.CUDAGraph()
        s = torch.randn(64, 64, device="cuda")
        with torch.cuda.graph(g):
            t = s @ s + 1
        g.replay()
        pools = [s["segment_pool_id"] for s in torch.cuda.memory._snapshot()["segments"]]
        tell(pools=len({tuple(p) for p in pools}))
        torch.cuda.set_per_process_memory_fraction(0.1)
        try:
            torch.empty(20 << 30, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            tell(fraction=str(error))
        event = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        [e.record() for e in event]
        torch.cuda.synchronize()
        tell(ms=event[0].elapsed_time(event[1]))
        import pynvml
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        tell(nvml_name=pynvml.nvmlDeviceGetName(handle), nvml_total=memory.total,
             nvml_uuid=pynvml.nvmlDeviceGetUUID(handle),
             mine=[p.usedGpuMemory for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
                   if p.pid == os.getpid()])
        tell(pinned=torch.empty(10, pin_memory=True).is_pinned())
        with open("/proc/self/status") as status:
            tell(rss_kib=int(next(l for l in status if l.startswith("VmRSS")).split()[1]))
        """
    )


def test_torch_sees_the_card_and_that_it_is_emulated(told: dict[str, Any]) -> None:
    assert told["name"] == told["nvml_name"] == "NVIDIA A100-SXM4-80GB (emulated)"
    assert told["uuid"] == "656d756c-6174-6564-0000-000000000000"  # "emulated" in hexadecimal
    assert told["nvml_uuid"] == f"GPU-{told['uuid']}"
    assert (told["capability"], told["total"]) == ([8, 0], A100.total_bytes)
    assert (told["multiprocessors"], told["l2"], told["threads"]) == (108, 40 * MIB, 2048)
    assert (told["shared"], told["warp"], told["count"]) == (166912, 32, 1)


def test_memory_is_counted_as_on_a_card(told: dict[str, Any]) -> None:
    assert told["free_at_first"] == A100.total_bytes - A100.context_bytes
    assert told["mem_total"] == A100.total_bytes
    # Two matrices of 4,000,000 bytes, and cuBLAS's workspace of 8,519,680 bytes.
    assert told["allocated"] == 2 * 4_000_256 + 8_519_680
    # Three segments of 3 GiB, and what the first lines reserved.
    assert told["free_at_first"] - told["free_after"] - 9 * GIB == told["reserved"]
    assert told["nvml_total"] == A100.nvml_total_bytes
    assert len(told["mine"]) == 1
    assert told["rss_kib"] < 1_500_000  # 9 GiB were allocated


def test_errors_are_torchs_own(told: dict[str, Any]) -> None:
    assert (
        "Tried to allocate 100.00 GiB. GPU 0 has a total capacity of 79.14 GiB" in told["message"]
    )
    assert "this process has" in told["message"]
    assert "allowed" in told["fraction"]


def test_history_graphs_events_and_pinned_memory_work(told: dict[str, Any]) -> None:
    assert told["traced"] >= 3
    assert told["pools"] == 2
    assert told["ms"] >= 0
    assert told["pinned"] is True


def test_new_segments_go_downwards_in_chunks(told: dict[str, Any]) -> None:
    first, second, third = told["addresses"]
    assert first > second > third
    assert {a % (32 * MIB) for a in told["addresses"]} == {0}


def test_expandable_segments_and_the_async_allocator(bench: Bench) -> None:
    code = """
    x = [torch.empty(600 << 20, dtype=torch.uint8, device="cuda") for _ in range(3)]
    free = torch.cuda.mem_get_info()[0]
    tell(used=torch.cuda.mem_get_info()[1] - free, allocated=torch.cuda.memory_allocated(),
         backend=torch.cuda.get_allocator_backend())
    del x
    torch.cuda.empty_cache()
    tell(after=torch.cuda.mem_get_info()[0])
    """
    for setting, backend in (
        ("expandable_segments:True", "native"),
        ("backend:cudaMallocAsync",) * 2,
    ):
        told = bench.run(code, PYTORCH_CUDA_ALLOC_CONF=setting)
        assert told["allocated"] == 1800 * MIB
        assert told["used"] == 1800 * MIB + A100.context_bytes
        assert told["after"] == A100.total_bytes - A100.context_bytes
        assert backend.endswith(told["backend"])


def test_visible_devices_and_cards_of_their_own(bench: Bench) -> None:
    code = """
    names = [torch.cuda.get_device_properties(i).uuid for i in range(torch.cuda.device_count())]
    a = torch.empty(1 << 30, dtype=torch.uint8, device="cuda:0")
    used = [torch.cuda.mem_get_info(i)[1] - torch.cuda.mem_get_info(i)[0] for i in range(2)]
    tell(last=[str(n)[-1] for n in names], used=used)
    b = a.to("cuda:1")
    tell(moved=torch.cuda.memory_allocated(1))
    """
    told = bench.run(code, Devices(H100, 8), CUDA_VISIBLE_DEVICES="5,2")
    assert told["last"] == ["5", "2"]
    assert told["used"] == [H100.context_bytes + GIB, H100.context_bytes]
    assert told["moved"] == GIB


def test_no_visible_device_is_no_device(bench: Bench) -> None:
    told = bench.run("tell(ok=torch.cuda.is_available())", CUDA_VISIBLE_DEVICES="")
    assert told["ok"] is False


def test_foreign_processes_hold_memory_from_the_start_and_in_the_middle(bench: Bench) -> None:
    code = """
    import time
    from pathlib import Path
    free = lambda: torch.cuda.mem_get_info()[0]
    tell(free=free())
    mine = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    before = free()
    Path(os.environ["OOMDOCTOR_EMULATED"], "started").touch()
    while free() == before:
        time.sleep(0.01)
    tell(arrived=before - free(), kept=torch.cuda.memory_allocated())
    try:
        torch.empty(16 << 30, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        tell(error=str(error))
    torch.empty(8 << 30, dtype=torch.uint8, device="cuda")
    """
    folder = bench.folder / "session-middle"
    folder.mkdir()
    devices = Devices(RTX_4090, foreign_bytes=4 * GIB)
    with (
        entered(bench.python, devices, folder, bench.cache) as session,
        ThreadPoolExecutor(1) as pool,
    ):
        arrival = pool.submit(_arrive, session, 12 * GIB)
        told = bench.run_in(session, code)
        arrival.result()
    assert told["free"] == RTX_4090.total_bytes - RTX_4090.context_bytes - 4 * GIB
    assert (told["arrived"], told["kept"]) == (8 * GIB, GIB)
    assert "Tried to allocate 16.00 GiB" in told["error"]


def _arrive(session: Session, size: int) -> None:
    """Let a foreign process hold bytes, once the code says that it has started."""
    end = time.monotonic() + 120
    while not (session.folder / "started").exists() and time.monotonic() < end:
        time.sleep(0.01)
    session.hold(1, {0: size})


def test_a_preloaded_library_has_room_for_its_thread_local_variables(
    bench: Bench, tmp_path: Path
) -> None:
    """Ray starts its servers with jemalloc: none of them began."""
    source, library = tmp_path / "local.c", tmp_path / "local.so"
    model = '__attribute__((tls_model("initial-exec")))'
    source.write_text(f"__thread char room[8192] {model}; char *at(void) {{ return room; }}")
    compiler = find_compiler(None)
    assert compiler is not None
    subprocess.run([compiler, "-shared", "-fPIC", source, "-o", library], check=True)
    (tmp_path / "session").mkdir()
    with entered(bench.python, Devices(A100), tmp_path / "session", bench.cache) as session:
        variables = os.environ | session.variables | {"LD_PRELOAD": str(library)}
        ended = subprocess.run(["true"], env=variables, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_processes_share_a_card_and_a_forked_child_starts_without_a_context(bench: Bench) -> None:
    told = bench.run(
        """
        import multiprocessing as mp
        def child(kind):
            x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
            free, total = torch.cuda.mem_get_info()
            print("TOLD", json.dumps({kind: total - free}), flush=True)
        if __name__ == "__main__":
            p = mp.get_context("fork").Process(target=child, args=("forked",))
            p.start(); p.join()
            x = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
            p = mp.get_context("spawn").Process(target=child, args=("spawned",))
            p.start(); p.join()
            tell(alone=torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0])
        """,
        Devices(A100),
    )
    assert told["forked"] == A100.context_bytes + GIB
    assert told["spawned"] == 2 * A100.context_bytes + 3 * GIB
    assert told["alone"] == A100.context_bytes + 2 * GIB


def test_mig_instances_are_listed_and_chosen_by_uuid(bench: Bench) -> None:
    code = """
    import pynvml
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    tell(mode=pynvml.nvmlDeviceGetMigMode(gpu)[0], gpus=pynvml.nvmlDeviceGetCount(),
         uuids=[pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, i))
                for i in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu))],
         count=torch.cuda.device_count(), uuid=torch.cuda.get_device_properties(0).uuid)
    """
    chosen = "MIG-656d756c-6174-6564-0000-000000000001"
    told = bench.run(code, Devices(A100, 2, mig=True), CUDA_VISIBLE_DEVICES=chosen)
    assert (told["mode"], told["gpus"], told["count"]) == (1, 1, 1)
    assert told["uuids"][1] == chosen
    assert told["uuid"] == chosen.removeprefix("MIG-")


def test_a_card_that_torch_has_no_kernels_for_says_so(bench: Bench) -> None:
    from oomdoctor.emulator.card import Card

    old = Card("Tesla P100-PCIE-16GB", (6, 0), 16 * GIB, 16 * GIB, 300 * MIB)
    told = bench.run("torch.ones(3, device='cuda') + 1", Devices(old), check=False)
    assert told["exit_code"] == 1
    assert "no kernel image is available for execution on the device" in told["output"]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("cudaMalloc@3+=2", "CUDA out of memory"),
        ("cudaLaunchKernel@2=719", "unspecified launch failure"),
        ("cudaMemcpyAsync@1=700", "an illegal memory access was encountered"),
        ("cudaGetDeviceCount@1=999", "unknown error"),
    ],
)
def test_a_call_fails_where_a_test_asks_for_it(bench: Bench, rule: str, words: str) -> None:
    told = bench.run(
        """
        x = [torch.ones(30 << 20, device="cuda") for _ in range(4)]
        x[0].sum().item()
        """,
        check=False,
        OOMDOCTOR_EMULATED_FAIL=rule,
    )
    assert told["exit_code"] != 0
    assert words in told["output"]


def test_without_a_session_the_libraries_say_who_they_are(bench: Bench) -> None:
    told = bench.run("torch.cuda.mem_get_info()", check=False, OOMDOCTOR_EMULATED="")
    assert told["exit_code"] == 70
    assert "OOMDOCTOR_EMULATED is not set" in told["output"]
