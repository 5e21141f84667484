"""LoopParts and Outlets: what the decode loop is made of, and where things leave it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from target_service.deadline import StepTimes, TreeDeadline
from target_service.draft_answers import DraftAnswers
from target_service.draft_asker import DraftAsker
from target_service.draft_desk import DraftDesk
from target_service.draft_orders import DraftOrders
from target_service.emission import Emission
from target_service.halves import Halves
from target_service.metrics import TargetMetrics
from target_service.request_desk import RequestDesk
from target_service.speculation_stats import AcceptanceWindow
from target_service.step_runner import StepRunner


@dataclass(frozen=True, slots=True)
class LoopParts:
    """What the loop drives; the engine thread alone touches it once the loop runs."""

    runner: StepRunner
    requests: RequestDesk
    drafts: DraftDesk
    answers: DraftAnswers
    asker: DraftAsker
    times: StepTimes
    halves: Halves
    window: AcceptanceWindow
    deadline: TreeDeadline
    metrics: TargetMetrics
    runs_ahead: bool  # a step without trees may be launched behind another


@dataclass(frozen=True, slots=True)
class Outlets:
    """Where things leave the loop. Neither call may block.

    send_orders: at once, for a draft's work waits for nothing else. Returns whether some are still to be sent, by
    another thread. deliver: while the next step runs; None: nobody is told, and nothing is put together.
    """

    send_orders: Callable[[dict[str, DraftOrders]], bool]
    deliver: Callable[[Emission], None] | None
