"""Asks: which trees one link is asked for, with the rows that go along."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.rounds import RawTensor
from paceline.types import TreeShape


@dataclass(slots=True, eq=False)
class Asks:
    """What travels as an ExtendInput. Columns, one entry a session; tokens and features are flat, a row each.

    Lists: arrays of a few entries take longer to make, and messages are filled from lists.
    """

    session: list[int] = field(default_factory=list)
    round: list[int] = field(default_factory=list)
    base_committed_len: list[int] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)  # rows of each session, at least one
    shapes: list[TreeShape] = field(default_factory=list)
    verified_id: list[int] = field(default_factory=list)
    hidden_states: RawTensor | None = None  # [rows, feature_size]; until it is known, nothing is sent

    def features(self) -> RawTensor:
        assert self.hidden_states is not None, "asks without their features"
        return self.hidden_states


def join(parts: list[Asks]) -> Asks:
    """Several steps' as one, at least one; of sessions that ask twice, the later ones come later."""
    if len(parts) == 1:
        return parts[0]
    joined = Asks()
    for part in parts:
        joined.session += part.session
        joined.round += part.round
        joined.base_committed_len += part.base_committed_len
        joined.num_tokens += part.num_tokens
        joined.shapes += part.shapes
        joined.verified_id += part.verified_id
    features = [part.features() for part in parts]
    shape = (len(joined.verified_id), features[0].shape[1])
    joined.hidden_states = RawTensor(features[0].dtype, shape, b"".join(part.data for part in features))
    return joined
