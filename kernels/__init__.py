"""Paceline's kernels: the op contract (``ops``) and the backends that fulfil it."""

__version__ = "0.1.0"
