"""Every row of the table of dialects on a message of our own making, and its exact figures."""

from __future__ import annotations

import pytest

from oomdoctor.explain.reading.parse import DIALECTS, MAY_OPEN, any_hint, parse_oom, read_message
from oomdoctor.explain.reading.printed_sizes import size_bytes
from oomdoctor.explain.reading.scan import scan

KIB, MIB, GIB = 1024, 1024**2, 1024**3
FIGURES = ("requested", "capacity", "free", "process", "allocated", "allowed")

# text, dialect, resource, figures
MESSAGES = [
    ("CUDA out of memory. Tried to allocate 1.50 GiB (GPU 0; 7.80 GiB total capacity; 5.25 GiB "
     "already allocated; 6.50 MiB free; 410.00 MiB cached)", "cuda_caching_allocator", "gpu",
     {"requested": 3 * GIB // 2, "capacity": round(7.8 * GIB), "allocated": 21 * GIB // 4,
      "free": 13 * MIB // 2}),
    ("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB of "
     "which 1.00 MiB is free. Including non-PyTorch memory, this process has 7.50 GiB memory in "
     "use.", "cuda_caching_allocator", "gpu",
     {"requested": 2 * GIB, "capacity": 8 * GIB, "free": MIB, "process": 15 * GIB // 2}),
    ("HIP out of memory. Tried to allocate 20.00 MiB (GPU 0; 16.00 GiB total capacity; 15.00 GiB "
     "already allocated; 0 bytes free; 15.50 GiB reserved in total by PyTorch)", "hip", "gpu",
     {"requested": 20 * MIB, "capacity": 16 * GIB, "allocated": 15 * GIB, "free": 0}),
    ("XPU out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacity of 16.00 GiB. Of "
     "the allocated memory 14.00 GiB is allocated by PyTorch", "xpu", "gpu",
     {"requested": 3 * GIB, "capacity": 16 * GIB, "allocated": 14 * GIB}),
    ("CPU out of memory. Tried to allocate 64.00 MiB. GPU 0 has a total capacity of 1.00 GiB of "
     "which 32.00 MiB is free.", "cpu_allocator", "host",
     {"requested": 64 * MIB, "capacity": GIB, "free": 32 * MIB}),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
     "cublas", "gpu", {}),
    ("Error out of memory at line 127 in file /src/csrc/pythonInterface.cpp", "bitsandbytes", "gpu",
     {}),
    ("RuntimeError: Triton Error [CUDA]: out of memory", "triton", "gpu", {}),
    ("CUDA error: out of memory current device: 0, in function alloc at ggml-cuda.cu:330",
     "llamacpp", "gpu", {}),
    ("Attempting to reserve 14.17G at the bottom of memory. That was not possible. There are "
     "12.00G free, 0B reserved, and 12.00G reservable.", "tpu", "gpu",
     {"requested": round(14.17 * GIB), "free": 12 * GIB}),
    ("HIP out of memory. Tried to allocate 1.50 GiB. GPU 2 has a total capacity of 64.00 GiB of "
     "which 512.00 MiB is free.", "hip", "gpu",
     {"requested": 3 * GIB // 2, "capacity": 64 * GIB, "free": 512 * MIB}),
    ("GPU 3 has a total capacity of 8.00 GiB of which 0 bytes is free. 4.00 GiB allowed; Of the "
     "allocated memory 3.50 GiB is allocated by PyTorch", "cuda_caching_allocator", "gpu",
     {"capacity": 8 * GIB, "free": 0, "allowed": 4 * GIB, "allocated": 7 * GIB // 2}),
    ("NPU out of memory. Tried to allocate 20.00 MiB (NPU 0; 32.00 GiB total capacity; 31.00 GiB "
     "already allocated; 1.00 MiB free; 31.50 GiB reserved in total by PyTorch)",
     "cuda_caching_allocator", "gpu",
     {"requested": 20 * MIB, "capacity": 32 * GIB, "allocated": 31 * GIB, "free": MIB}),
    ("MPS backend out of memory (MPS allocated: 20.00 GB, other allocations: 1.00 GB, max allowed: "
     "30.00 GB). Tried to allocate 16.00 KB on shared pool.", "mps", "gpu",
     {"requested": 16 * KIB, "allocated": 20 * GIB, "capacity": 30 * GIB}),
    ("RuntimeError: Invalid buffer size: 24.00 GB", "mps", "gpu", {"requested": 24 * GIB}),
    ("MPS backend out of memory (MPS allocated: 20.00 GiB, other allocations: 1.00 MiB, max "
     "allowed: 30.00 GiB). Tried to allocate 16.00 KiB on private pool.", "mps", "gpu",
     {"requested": 16 * KIB, "allocated": 20 * GIB, "capacity": 30 * GIB}),
    ("RuntimeError: CUDA out of memory.", "cuda_caching_allocator", "gpu", {}),
    ("RuntimeError: Not enough memory, use lower resolution (max approx. 448x448). Need: 0.0GB",
     "cuda_caching_allocator", "gpu", {}),
    ("zeMemAllocDevice failed: ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY", "xpu", "gpu", {}),
    ("CUDA out of memory!", "cuda_caching_allocator", "gpu", {}),
    ("Warning: Ran out of memory when regular VAE decoding, retrying with tiled VAE decoding.",
     "cuda_caching_allocator", "gpu", {}),
    ("[W3] memory allocation failed with OOM on device 0 while trying to allocate 2147483648 bytes "
     "(free: 1073741824, total: 8589934592).", "cuda_caching_allocator", "gpu",
     {"requested": 2 * GIB, "free": GIB, "capacity": 8 * GIB}),
    ("torch.OutOfMemoryError: Tried to allocate 12.50 GiB. GPU had 12.00 GiB free of 79.19",
     "cuda_caching_allocator", "gpu", {"requested": 25 * GIB // 2, "free": 12 * GIB}),
    ("RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at CUDACachingAllocator.cpp:1131",
     "cuda_caching_allocator", "gpu", {}),
    ("RuntimeError: No executable batch size found, reached zero.", "cuda_caching_allocator",
     "gpu", {}),
    ("$ Torch: not enough memory: you tried to allocate 2GB. Buy new RAM!", "cpu_allocator", "host",
     {"requested": 2 * 10**9}),
    ("Unable to find a valid cuDNN algorithm to run convolution", "cudnn", "gpu", {}),
    ("HIP error: out of memory", "hip", "gpu", {}),
    ("level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", "xpu",
     "gpu", {}),
    ("NCCL WARN Cuda failure 2 'out of memory'", "nccl", "gpu", {}),
    ("Error while creating shared memory segment /dev/shm/nccl-ab12 (size 9637888)", "nccl", "shm",
     {}),
    ("allocating 640.50 MiB on device 1: cudaMalloc failed: out of memory", "llamacpp", "gpu",
     {"requested": 1281 * MIB // 2}),
    ("ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 4096", "llamacpp", "gpu",
     {"requested": 4096}),
    ("model requires more system memory (12.0 GiB) than is available (7.5 GiB)", "llamacpp", "host",
     {"requested": 12 * GIB, "free": 15 * GIB // 2}),
    ("ValueError: No available memory for the cache blocks.", "vllm", "gpu", {}),
    ("To serve at least one request with the models's max seq len (4096), 2.0 GiB KV cache is "
     "needed", "vllm", "gpu", {}),
    ("The model's max seq len (4096) is larger than the maximum number of tokens that can be stored"
     " in KV cache (1024)", "vllm", "gpu", {}),
    ("Free memory on device (3.1/23.6 GiB) on startup is less than desired GPU memory utilization",
     "vllm", "gpu", {"free": round(3.1 * GIB), "capacity": round(23.6 * GIB)}),
    ("ValueError: Some modules are dispatched on the CPU or the disk. Make sure you have enough "
     "GPU RAM", "cuda_caching_allocator", "gpu", {}),
    ("RuntimeError: Unsloth: No or negligible GPU memory available for fused cross entropy.",
     "cuda_caching_allocator", "gpu", {}),
    ("- **Exception Type:** torch.OutOfMemoryError", "cuda_caching_allocator", "gpu", {}),
    ("- **Exception Message:** Allocation on device 0 would exceed allowed memory. Requested "
     "    : 2.00 GiB", "cuda_malloc_async", "gpu", {"requested": 2 * GIB}),
    ("!!! Exception during processing !!! Allocation on device ", "cuda_malloc_async", "gpu", {}),
    ("[METAL] Command buffer execution failed: Insufficient Memory", "mps", "gpu", {}),
    ("error: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)", "mps",
     "gpu", {}),
    ("[metal::malloc] Attempting to allocate 8589934592 bytes which is greater than the maximum "
     "allowed buffer size", "mps", "gpu", {"requested": 8 * GIB}),
    ("GPUassert: out of memory src/a.cu 14", "cuda_driver", "gpu", {}),
    ('CUDA RT call "cudaMalloc(&p, n)" in line 71 of file a.cu failed with out of memory (2).',
     "cuda_driver", "gpu", {}),
    ("[TRT] Error Code 2: OutOfMemory (Requested size was 1024 bytes.)", "cuda_driver", "gpu",
     {"requested": KIB}),
    ("NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)",
     "cuda_driver", "gpu", {}),
    ("java.lang.OutOfMemoryError: Java heap space", "cpu_allocator", "host", {}),
    ("WARNING: The object store is using /tmp instead of /dev/shm because /dev/shm has only "
     "67108864 bytes available.", "dataloader_shm", "shm", {}),
    ("  3%|3    | 412/12000 [10:44<5:01:10,  1.56s/it]Killed", "host_oom_killer", "host", {}),
    ("Map:  71%|###  | 710/1000 [12:10<05:02, 958.02 examples/s]Killed", "host_oom_killer",
     "host", {}),
    ("the subprocess failed with error code -9", "host_oom_killer", "host", {}),
    ("The exit codes of the workers are {SIGKILL(-9)}", "host_oom_killer", "host", {}),
    ("Worker (pid:19) was sent SIGKILL! Perhaps out of memory?", "host_oom_killer", "host", {}),
    ("RuntimeError: cublas runtime error : resource allocation failed at THCGeneral.cpp:216",
     "cublas", "gpu", {}),
    ("HSA_STATUS_ERROR_OUT_OF_RESOURCES: The runtime failed to allocate the resources.", "hip",
     "gpu", {}),
    ("RuntimeError: unable to mmap 9976576152 bytes from file <a.bin>: Cannot allocate memory (12)",
     "cpu_allocator", "host", {}),
    ("-bash: fork: retry: Cannot allocate memory", "cpu_allocator", "host", {}),
    ("OSError: The paging file is too small for this operation to complete.", "cpu_allocator",
     "host", {}),
    ("RayOutOfMemoryError: More than 95% of the memory on node n1 is used (62.4 / 64 GB).",
     "host_oom_killer", "host", {}),
    ("ray.exceptions.ObjectStoreFullError: Failed to put object in object store because it is full",
     "dataloader_shm", "shm", {}),
    ("ggml_backend_metal_buffer_type_alloc_buffer: error: failed to allocate buffer, size =  "
     "3072.00 MiB", "llamacpp", "gpu", {"requested": 3 * GIB}),
    ("ggml_vulkan: Device memory allocation of size 1073741824 failed.", "llamacpp", "gpu",
     {"requested": GIB}),
    ("RuntimeError: Insufficient VRAM for model and cache", "cuda_caching_allocator", "gpu", {}),
    ("RuntimeError: Decode out of memory. Try to lower your batch size.", "vllm", "gpu", {}),
    ("c++: fatal error: Killed signal terminated program cc1plus", "host_oom_killer", "host", {}),
    ("torch.OutOfMemoryError", "cuda_caching_allocator", "gpu", {}),
    ("RuntimeError: out of memory", "cuda_caching_allocator", "gpu", {}),
    ("bfc_arena.cc:368 onnxruntime::BFCArena::AllocateRawInternal Available memory of 1024 is "
     "smaller than requested bytes of 2048", "cuda_driver", "gpu",
     {"requested": 2 * KIB, "free": KIB}),
    ("RuntimeError: CUDA failed with error out of memory", "cuda_driver", "gpu", {}),
    ("DGLError: Check failed: e == cudaSuccess: CUDA: out of memory", "cuda_driver", "gpu", {}),
    ("RuntimeError: Could not allocate tensor with 1024 bytes. There is not enough GPU video "
     "memory available!", "cuda_driver", "gpu", {"requested": KIB}),
    ("RuntimeError: Allocation is out of device memory on current platform.", "xpu", "gpu", {}),
    ("ClientError: Please use an instance type with more memory, or reduce the size of job data",
     "container", "host", {}),
    ("cv2.error: OpenCV(4.5.5) error: (-4:Insufficient memory) Failed to allocate 1024 bytes",
     "cpu_allocator", "host", {"requested": KIB}),
    ("the worker exited with code -9", "host_oom_killer", "host", {}),
    ("returncode=-9", "host_oom_killer", "host", {}),
    ("Memory limit exceeded (16Gi)", "container", "host", {}),
    ("Container killed by YARN for exceeding memory limits.", "container", "host", {}),
    ("*** SIGBUS received at time=1700012123 on cpu 14 ***", "dataloader_shm", "shm", {}),
    ("Not enough memory. Please try to increase --mem-fraction-static.", "vllm", "gpu", {}),
    ("ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 4096",
     "llamacpp", "host", {"requested": 4096}),
    ("CUDA error 2 at ggml-cuda.cu:7586: out of memory", "llamacpp", "gpu", {}),
    ("max_num_seqs (1024) exceeds available Mamba cache blocks (702).", "vllm", "gpu", {}),
    ("Executor creation failed due to insufficient GPU memory.\nTotal GPU memory (GiB): 80.00",
     "cuda_driver", "gpu", {}),
    ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 12.50GiB.", "xla", "gpu",
     {"requested": 25 * GIB // 2}),
    ("RESOURCE_EXHAUSTED: Out of memory allocating 4096 bytes.", "xla", "gpu", {"requested": 4096}),
    ("RESOURCE_EXHAUSTED: Failed to allocate request for 2.00GiB (2147483648B) on device ordinal 0",
     "xla", "gpu", {"requested": 2 * GIB}),
    ("Ran out of memory in memory space hbm. Used 20.00G of 15.50G hbm.", "tpu", "gpu",
     {"capacity": 31 * GIB // 2}),
    ("OOM when allocating tensor with shape[2,3,4] and type float on /job:x/device:GPU:0 by "
     "allocator GPU_0_bfc", "tensorflow", "gpu", {"requested": 96}),
    ("OOM when allocating tensor with shape[2,3] and type double on /device:CPU:0 by allocator cpu",
     "tensorflow", "host", {"requested": 48}),
    ("Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.50GiB", "tensorflow", "gpu",
     {"requested": 3 * GIB // 2}),
    ("failed to allocate 2.00G (2147483648 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of "
     "memory", "tensorflow", "gpu", {"requested": 2 * GIB}),
    ("OutOfMemoryError: Out of memory allocating 8,000,000 bytes (allocated so far: 1 bytes).",
     "cuda_driver", "gpu", {"requested": 8_000_000}),
    ("Warp CUDA error 2: out of memory (in function f)", "cuda_driver", "gpu", {}),
    ("Unexpected error from cudaGetDeviceCount(). Error 2: out of memory", "cuda_driver", "gpu",
     {}),
    ("MemoryError: Unable to allocate 1.50 GiB for an array with shape (3, 4) and data type int8",
     "numpy", "host", {"requested": 3 * GIB // 2}),
    ("RuntimeError: unable to open shared memory object </torch_1_2> in read-write mode",
     "dataloader_shm", "shm", {}),
    ("DataLoader worker (pid 77) is killed by signal: Bus error.", "dataloader_shm", "shm", {}),
    ("RuntimeError: unable to allocate shared memory(shm) for file </torch_1_2>: No space left on "
     "device (28)", "dataloader_shm", "shm", {}),
    ("$ Torch: unable to mmap memory: you tried to mmap 0GB.", "dataloader_shm", "shm", {}),
    ("OSError: [Errno 28] No space left on device: '/psm_77ab'", "dataloader_shm", "shm", {}),
    ("DataLoader worker (pid 77) is killed by signal: Killed.", "dataloader_worker", "host", {}),
    ("expandable_segments: memory mapping failed with OOM on device 0 while trying to map 2097152 "
     "bytes (free: 1048576, total: 1073741824).", "cuda_caching_allocator", "gpu",
     {"requested": 2 * MIB, "free": MIB, "capacity": GIB}),
    ("[enforce fail at context_gpu.cu:300] error == cudaSuccess. 2 vs 0. Error at: a.cu:300: out "
     "of memory", "cuda_caching_allocator", "gpu", {}),
    ("MemoryError: Allocation of 512.00 MB failed on NV. Used: 4.00 GB", "cuda_caching_allocator",
     "gpu", {"requested": 512 * 10**6, "process": 4 * 10**9}),
    ("rocm_driver.cc:600] failed to allocate 1.00G (1073741824 bytes) from device: "
     "HIP_ERROR_OutOfMemory", "cuda_driver", "gpu", {}),
    ("Exception in gpu_hist: Memory allocation error on worker 0: std::bad_alloc: "
     "cudaErrorMemoryAllocation: out of memory", "cuda_driver", "gpu", {}),
    ("Cuda Error: out of memory at /w/csrc/cumem_allocator.cpp: 62", "cuda_driver", "gpu", {}),
    ("RuntimeError: after cudaLaunch in triple_chevron_launcher::launch(): out of memory",
     "cuda_driver", "gpu", {}),
    ("terminate called\n  what():  std::bad_alloc: out of memory", "cuda_driver", "gpu", {}),
    ("  what():  Memory Object Allocation Failure", "cuda_driver", "gpu", {}),
    ("lightgbm.basic.LightGBMError: Out of Host Memory", "cpu_allocator", "host", {}),
    ("RuntimeError: indice.cu 125\ncuda execution failed with error 2", "cuda_driver", "gpu", {}),
    ("INFO | Failed (CUDA out of memory) on sequence a-9 of length 918.", "cuda_caching_allocator",
     "gpu", {}),
    ("WARNING CUDA OutOfMemoryError in TaskAlignedAssigner, using CPU", "cuda_caching_allocator",
     "gpu", {}),
    ("RuntimeError: Resource exhausted: Failed to allocate request for 2.00MiB (2097152B) on "
     "device ordinal 0", "xla", "gpu", {"requested": 2 * MIB}),
    ("RuntimeError: Some background workers are no longer alive", "background_worker", "host", {}),
    ("RuntimeError: One or more background workers are no longer alive. Exiting.",
     "background_worker", "host", {}),
    ("Out of memory: Killed process 9 (python) total-vm:20kB, anon-rss:8192kB, file-rss:0kB",
     "host_oom_killer", "host", {"process": 8 * MIB}),
    ("job.service: Failed with result 'oom-kill'.", "host_oom_killer", "host", {}),
    ("Task was killed due to the node running low on memory.", "host_oom_killer", "host", {}),
    ("RuntimeError: One of the subprocesses has abruptly died during map operation.To debug the "
     "error, disable multiprocessing.", "host_oom_killer", "host", {}),
    ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.batch.", "slurm", "host", {}),
    ("slurmstepd: error: Detected 2 oom-kill event(s) in step 7.0 cgroup.", "slurm", "host", {}),
    ("srun: error: node1: task 3: Out Of Memory", "slurm", "host", {}),
    ("slurmstepd: error: Exceeded job memory limit at some point.", "slurm", "host", {}),
    ("TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.", "slurm", "host", {}),
    ("Reason: OOMKilled", "container", "host", {}),
    ("oomdoctor: the kernel killed 2 processes for lack of host memory; of 8.00 GiB, 1.00 GiB was "
     "available at the least", "host_oom_killer", "host", {}),
    ("oomdoctor: a bus error ended the command, and /dev/shm was full: 0 B of 64.0 MiB was free",
     "dataloader_shm", "shm", {}),
    ("OSError: [Errno 12] Cannot allocate memory", "cpu_allocator", "host", {}),
    ("Memory allocation error on worker 0: std::bad_alloc: cudaErrorMemoryAllocation: out of "
     "memory", "cuda_driver", "gpu", {}),
    ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED", "cpu_allocator", "host",
     {}),
    ("terminate called after throwing an instance of 'std::bad_alloc'", "cpu_allocator", "host",
     {}),
    ("MemoryError", "cpu_allocator", "host", {}),
    ("trainer exited with code 137", "container", "host", {}),
    ("4f2a1b3c   train:1   Exited (137) 2 hours ago", "container", "host", {}),
    ("  exitcode  : -9 (pid: 5)", "host_oom_killer", "host", {}),
    ("subprocess.CalledProcessError: Command 'x' died with <Signals.SIGKILL: 9>.",
     "host_oom_killer", "host", {}),
    ("Killed", "host_oom_killer", "host", {}),
    ("zsh: killed     python train.py", "host_oom_killer", "host", {}),
    ("run.sh: line 4:  77 Killed                  python train.py", "host_oom_killer", "host", {}),
    ("THCudaCheck FAIL file=/torch/THCStorage.cu line=58 error=2 : out of memory",
     "cuda_caching_allocator", "gpu", {}),
    ("of which 6.00 MiB is free. Including non-PyTorch memory, this process has 7.50 GiB memory in "
     "use. Of the allocated memory 7.00 GiB is allocated by PyTorch", "cuda_caching_allocator",
     "gpu", {"free": 6 * MIB, "process": 15 * GIB // 2, "allocated": 7 * GIB}),
    ("torch.OutOfMemoryError: Allocation on device", "cuda_malloc_async", "gpu", {}),
    ("ValueError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests.",
     "vllm", "gpu", {}),
    ("Not enough memory to handle 8192 prefill tokens.", "vllm", "gpu", {}),
    ("llama runner process has terminated: cudaMalloc failed: out of memory", "llamacpp", "gpu",
     {}),
    ("cudaMalloc failed: out of memory", "cuda_driver", "gpu", {}),
    ("Out of memory error on GPU 0. Cannot allocate 15.503906GB memory on GPU 0, 28.770508GB "
     "memory has been allocated and available memory is only 10.815613GB.", "cuda_driver", "gpu",
     {"requested": round(15.503906 * GIB), "allocated": round(28.770508 * GIB),
      "free": round(10.815613 * GIB)}),
    ("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Failed to allocate memory for requested buffer "
     "of size 4294967296", "cuda_driver", "gpu", {"requested": 4 * GIB}),
    ("[enforce fail at CPUAllocator.cpp:64] . DefaultCPUAllocator: can't allocate memory: you "
     "tried to allocate 2147483648 bytes. Error code 12", "cpu_allocator", "host",
     {"requested": 2 * GIB}),
    ("DefaultCPUAllocator: not enough memory: you tried to allocate 2,147,483,648 bytes.",
     "cpu_allocator", "host", {"requested": 2 * GIB}),
    ('Usage of EmptyDir volume "dshm" exceeds the limit "1Gi".', "dataloader_shm", "shm", {}),
    ("Killed process 9 (python) total-vm:20kB, anon-rss:4096kB, file-rss:0kB", "host_oom_killer",
     "host", {"process": 4 * MIB}),
    ("systemd-oomd[812]: Killed /user.slice/user-1000.slice due to memory pressure for /user.slice",
     "host_oom_killer", "host", {}),
    ("Slurm Job_id=47 Name=tune Ended, Run time 00:03:11, OUT_OF_MEMORY", "slurm", "host", {}),
    ("sacct: 47.0 State=OUT_OF_MEMORY ExitCode=0:125 MaxRSS=4096K ReqMem=8192K", "slurm", "host",
     {"process": 4 * MIB, "allowed": 8 * MIB}),
    ("=>> PBS: job killed: vmem 2147483648 exceeded limit 1073741824", "slurm", "host", {}),
    ("=>> PBS: job killed: mem 4096kb exceeded limit 2048kb", "slurm", "host",
     {"process": 4 * MIB, "allowed": 2 * MIB}),
    ("=>> PBS: job killed: mem job total 4096 kb exceeded limit 2048 kb", "slurm", "host",
     {"process": 4 * MIB, "allowed": 2 * MIB}),
    ('job 47.1 exceeds job hard limit "h_vmem" of queue "all.q@n1" (2147483648.00000 > '
     "limit:1073741824.00000) - sending SIGKILL", "slurm", "host", {}),
    ("The node was low on resource: memory. Threshold quantity: 100Mi, available: 17348Ki.",
     "container", "host", {}),
    ("System OOM encountered, victim process: python, pid: 77", "container", "host", {}),
    ("Your session crashed after using all available RAM.", "container", "host", {}),
    ("Your notebook tried to allocate more memory than is available. It has restarted.",
     "container", "host", {}),
    ("Task exited with return code Negsignal.SIGKILL", "host_oom_killer", "host", {}),
    ("srun: error: node7: tasks 0-3: Killed", "host_oom_killer", "host", {}),
    ("  exitcode  : -7 (pid: 5)", "dataloader_shm", "shm", {}),
    ("traceback : Signal 7 (SIGBUS) received by PID 77", "dataloader_shm", "shm", {}),
    ("Fatal Python error: Bus error", "dataloader_shm", "shm", {}),
    ("run.sh: line 4:    77 Bus error               (core dumped) python train.py",
     "dataloader_shm", "shm", {}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "dialect", "resource", "expected"), MESSAGES)
def test_each_wording_is_read_with_its_figures(text, dialect, resource, expected):
    message = read_message(text)
    assert (message.event.dialect, message.resource) == (dialect, resource)
    found = {name: getattr(message.event, f"{name}_bytes") for name in FIGURES}
    assert {name: size for name, size in found.items() if size is not None} == expected


@pytest.mark.parametrize(("text", "dialect", "resource", "expected"), MESSAGES)
def test_no_row_is_missed_by_the_words_that_a_scan_looks_for(text, dialect, resource, expected):
    assert MAY_OPEN.search(text)
    assert any_hint([read_message(text).dialect.hints]).search(text)
    incidents, _ = scan([text])
    assert [(i.event.dialect, i.resource) for i in incidents] == [(dialect, resource)]


@pytest.mark.parametrize(
    "text",
    [
        "To avoid CUDA out of memory, lower the batch size.",
        "CUDA out of memory errors are common with long sequences",
        "Killed two birds with one stone",
        "the process was Killed",
        "memory usage: 12 GiB of 24 GiB",
        "exit code 13",
        "shared memory is fast",
        "loaded with low_cpu_mem_usage to save memory",
        "MemoryErrors are rare",
        "out of memory of old days",
        "OOMKilled: false",
        "we allocate 20 MiB for this",
        "The node was low on resource: ephemeral-storage.",
        'Usage of EmptyDir volume "cache" exceeds the limit "1Gi".',
        "a bus error may follow",
    ],
)
def test_a_text_that_only_mentions_memory_is_no_failure(text):
    assert read_message(text) is None
    assert scan([text])[0] == ()


def test_a_warning_of_the_allocator_gives_way_to_the_message_after_it():
    warning = (
        "memory allocation failed with OOM on device 0 while trying to allocate 2147483648 bytes "
        "(free: 1073741824, total: 8589934592).\n"
    )
    message = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a "
    total = "total capacity of 8.00 GiB of which 1023.50 MiB is free.\n"
    (found,), _ = scan((warning + message + total).splitlines())
    assert found.event.free_bytes == 2047 * MIB // 2
    found, _ = scan((message + total + warning).splitlines())
    assert [one.event.free_bytes for one in found] == [2047 * MIB // 2, GIB]


def test_a_bare_exit_is_no_message_for_the_worker():
    assert parse_oom("Killed") is None
    assert parse_oom("x exited with code 137") is None


def test_units_are_told_apart_and_an_underflow_is_no_figure():
    assert (size_bytes("1.00 GiB"), size_bytes("1.00 GB")) == (GIB, 10**9)
    assert [size_bytes(f"2 {unit}", True) for unit in ("KB", "MiB", "gb", "bytes")] == [
        2 * KIB,
        2 * MIB,
        2 * GIB,
        2,
    ]
    assert size_bytes("31.25G") == 125 * GIB // 4
    assert size_bytes("17179869184.00 GiB") is None
    assert size_bytes("17179869184.00 GiB") is None


def test_the_opening_has_to_stand_in_the_first_line():
    text = "something else. CUDA out of memory. Tried to allocate 1.00 GiB"
    assert read_message(text, within=10) is None
    assert read_message(text, within=40) is not None


def test_every_row_has_a_message_here():
    read = {id(read_message(text).dialect) for text, *_ in MESSAGES}
    alone = [row for row in DIALECTS if row.in_frames is None]
    missing = [f"{row.name}: {row.opening.pattern}" for row in alone if id(row) not in read]
    assert missing == []


def test_every_row_names_its_source_and_versions():
    assert all(row.source and row.versions for row in DIALECTS)
