"""`run`: a command on real or emulated GPUs, watched from outside, and its report."""
