"""A model of the memory that DeepSpeed's ZeRO takes on a GPU, for interpreters without CUDA.

Written from DeepSpeed 0.19.8 (runtime/zero/stage_1_and_2.py, stage3.py,
partitioned_param_coordinator.py, config.py), and compared with DeepSpeed on the emulated GPU
(`tests/data/emulated/zero.json`). Without DeepSpeed's own code nothing here is exact.
"""
