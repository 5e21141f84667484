"""A round's messages as columns: what a target committed, and the trees a draft answers with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.errors import WireError
from paceline.tree import DraftTree

ITEM_SIZES = {"float32": 4, "float16": 2, "bfloat16": 2, "int32": 4, "int64": 8, "uint64": 8}


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A dense row-major array as it travels. Raises WireError where the bytes do not fit dtype and shape."""

    dtype: str  # a key of ITEM_SIZES
    shape: tuple[int, ...]
    data: bytes | memoryview

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_SIZES:
            raise WireError(f"a tensor has the unknown dtype {self.dtype!r}; send one of {sorted(ITEM_SIZES)}")
        expected = ITEM_SIZES[self.dtype]
        for dim in self.shape:
            expected *= dim
        if len(self.data) != expected:
            raise WireError(
                f"a {self.dtype} tensor of shape {list(self.shape)} needs {expected} bytes, not {len(self.data)}"
            )


@dataclass(frozen=True, slots=True)
class ExtendColumns:
    """ExtendInput without its incarnation. Columns [b]; rows are flat, in the order of the sessions.

    Raises WireError where the columns disagree in length.
    """

    session: np.ndarray  # uint64 [b]
    round: np.ndarray  # int64 [b]
    base_committed_len: np.ndarray  # int64 [b]
    num_tokens: np.ndarray  # int64 [b], rows of each session
    propose: np.ndarray  # bool [b]
    num_steps: np.ndarray  # int64 [b]
    eagle_topk: np.ndarray  # int64 [b]
    num_draft_tokens: np.ndarray  # int64 [b]
    min_path_permille: np.ndarray  # int64 [b]
    verified_id: np.ndarray  # int32 [rows]
    hidden_states: RawTensor  # [rows, feature_size]

    def __post_init__(self) -> None:
        size = len(self.session)
        columns = ("round", "base_committed_len", "num_tokens", "propose", "num_steps", "eagle_topk")
        for name in (*columns, "num_draft_tokens", "min_path_permille"):
            if len(getattr(self, name)) != size:
                raise WireError(f"{name} has {len(getattr(self, name))} entries for {size} sessions")
        rows = int(self.num_tokens.sum())
        if len(self.verified_id) != rows:
            raise WireError(f"verified_id has {len(self.verified_id)} tokens for {rows} rows")
        if len(self.hidden_states.shape) != 2 or self.hidden_states.shape[0] != rows:
            raise WireError(f"hidden_states has shape {list(self.hidden_states.shape)} for {rows} rows")


@dataclass(frozen=True, slots=True)
class VerifyColumns:
    """VerifyInput without its incarnation. Columns [b]; nodes are flat, in the order of the sessions."""

    session: np.ndarray  # uint64 [b]
    round: np.ndarray  # int64 [b]
    base_committed_len: np.ndarray  # int64 [b]
    num_tokens: np.ndarray  # int64 [b], nodes of each tree
    draft_token: np.ndarray  # int32 [sum n]
    parents: np.ndarray  # int32 [sum n]

    def __post_init__(self) -> None:
        size = len(self.session)
        for name in ("round", "base_committed_len", "num_tokens"):
            if len(getattr(self, name)) != size:
                raise WireError(f"{name} has {len(getattr(self, name))} entries for {size} sessions")
        nodes = int(self.num_tokens.sum())
        for name in ("draft_token", "parents"):
            if len(getattr(self, name)) != nodes:
                raise WireError(f"{name} has {len(getattr(self, name))} entries for {nodes} nodes")

    def trees(self) -> list[DraftTree]:
        """The trees, one a session. Raises WireError for the first that is none."""
        return DraftTree.many(self.draft_token, self.parents, self.num_tokens)
