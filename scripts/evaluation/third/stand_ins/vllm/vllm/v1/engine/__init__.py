"""vLLM V1."""

from enum import Enum


class FinishReason(Enum):
    STOP = 0
    LENGTH = 1
    ABORT = 2
