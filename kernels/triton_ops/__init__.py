"""The Triton backend: each op one kernel or two, safe to capture in a CUDA graph. Runs on the CPU interpreted."""
