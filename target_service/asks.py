"""Asks: which trees one link is asked for, with the rows that go along."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.types import TreeShape


@dataclass(slots=True, eq=False)
class Asks:
    """What travels as an ExtendInput. Columns, one entry a session; tokens and features are flat, a row each.

    Lists: arrays of a few entries take longer to make, and messages are filled from lists.
    """

    session: list[int] = field(default_factory=list)
    round: list[int] = field(default_factory=list)
    base_committed_len: list[int] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)  # rows of each session; 0 asks again at the same length
    shapes: list[TreeShape] = field(default_factory=list)
    verified_id: list[int] = field(default_factory=list)
    dtype: str = ""
    feature_size: int = 0
    # The rows' bytes, end to end. Views of memory that later steps write to, until ``own``.
    features: list[bytes | memoryview] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)  # of the last step, where the features are to be found there

    def own(self) -> None:
        """From now on the features are these asks' own."""
        self.features = [b"".join(self.features)]


def join(parts: list[Asks]) -> Asks:
    """Several steps' as one, at least one; of sessions that ask twice, the later ones come later."""
    if len(parts) == 1:
        return parts[0]
    joined = Asks(dtype=parts[0].dtype, feature_size=parts[0].feature_size)
    for part in parts:
        joined.session += part.session
        joined.round += part.round
        joined.base_committed_len += part.base_committed_len
        joined.num_tokens += part.num_tokens
        joined.shapes += part.shapes
        joined.verified_id += part.verified_id
        joined.features += part.features
    return joined
