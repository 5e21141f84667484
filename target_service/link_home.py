"""LinkHome: what the links to all drafts share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from paceline.plumbing import Plumbing
from target_service.events import Event
from target_service.round_lane import RoundLanes


@dataclass(frozen=True, slots=True)
class LinkHome:
    """put: hands an event to the engine, from any thread."""

    put: Callable[[Event], None]
    plumbing: Plumbing
    lanes: RoundLanes
