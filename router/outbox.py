"""What waits to be sent to one target: one message of each kind at most, however many requests it is for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Generic, TypeVar

from paceline.types import SpeculationDecision

SubmissionT = TypeVar("SubmissionT")


class Outbox(Generic[SubmissionT]):
    """Filled within a turn of the event loop, emptied by the link's writer in the next.

    Submissions leave before updates and cancels, so that the target knows the numbers that these name.
    """

    def __init__(self) -> None:
        self.submissions: list[SubmissionT] = []
        self.decisions: dict[int, SpeculationDecision] = {}
        self.cancels: list[int] = []
        self.batch_policy: dict[str, int] = {}
        self._filled = asyncio.Event()

    def submit(self, submission: SubmissionT) -> None:
        self.submissions.append(submission)
        self._filled.set()

    def update(self, number: int, decision: SpeculationDecision) -> None:
        """The newest decision for a request replaces one that has not left yet."""
        self.decisions[number] = decision
        self._filled.set()

    def cancel(self, number: int) -> None:
        self.decisions.pop(number, None)
        self.cancels.append(number)
        self._filled.set()

    def set_batch_policy(self, fields: Mapping[str, int]) -> None:
        """Fields of a BatchPolicy; the newest value of each leaves."""
        self.batch_policy.update(fields)
        self._filled.set()

    async def wait(self) -> None:
        """Returns once something is there."""
        await self._filled.wait()
        self._filled.clear()

    def take_submissions(self) -> list[SubmissionT]:
        taken, self.submissions = self.submissions, []
        return taken

    def take_decisions(self) -> dict[int, SpeculationDecision]:
        taken, self.decisions = self.decisions, {}
        return taken

    def take_batch_policy(self) -> dict[str, int]:
        taken, self.batch_policy = self.batch_policy, {}
        return taken

    def take_cancels(self) -> list[int]:
        taken, self.cancels = self.cancels, []
        return taken
