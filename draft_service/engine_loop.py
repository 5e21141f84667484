"""EngineLoop: the thread that owns the device. It drains its whole inbox before each step and waits for nobody."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from draft_service.draft_engine import DraftEngine
from draft_service.events import Event
from draft_service.load import LoadFigures
from draft_service.replies import Replies
from draft_service.step_record import StepRecord
from engine.device import computing_on
from paceline.mailbox import Mailbox

_REST_S = 1.0  # without an event: nobody waits for a round, and the last ones' messages take memory

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepNote:
    """What watchers learn of a turn, once its answers are out. record: None where no batch was run."""

    load: LoadFigures
    record: StepRecord | None


@dataclass(frozen=True, slots=True)
class Outlets:
    """Called on the engine's thread; each must return at once. failed gets the error that ended the thread."""

    answer: Callable[[Replies], object]
    note: Callable[[StepNote], object]
    failed: Callable[[BaseException], object]


class EngineLoop:
    """Runs a DraftEngine on a thread of its own, from ``start`` to ``close``."""

    def __init__(
        self, engine: DraftEngine, mailbox: Mailbox[Event | None], outlets: Outlets, *, device: torch.device
    ) -> None:
        """mailbox: the thread's, to which lanes may bring events, too; None ends it. device: that of the engine."""
        self._engine = engine
        self._device = device
        self._outlets = outlets
        self._mailbox = mailbox
        self._thread = threading.Thread(target=self._run, name="draft-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def post(self, event: Event) -> None:
        """From any thread; never blocks."""
        self._mailbox.put(event)

    def close(self) -> None:
        """Ends the thread after the step it is in; what waits is left unanswered."""
        self._mailbox.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            with computing_on(self._device):
                while self._turn():
                    pass
        except Exception as error:  # noqa: BLE001 - whatever ends the engine must end the service, not hang its peers
            _log.exception("the engine thread ended")
            self._outlets.failed(error)
        finally:
            self._mailbox.close()

    def _turn(self) -> bool:
        events = self._drain()
        if events is None:
            return False
        replies = Replies()
        self._engine.apply(events, replies)
        if replies:
            self._outlets.answer(replies)
        record = None
        if self._engine.has_work:
            record = self._engine.step(self._outlets.answer, self._mailbox.gather)
        self._outlets.note(StepNote(self._engine.load(), record))
        return True

    def _wait(self) -> list[Event | None]:
        """For the next events, however often a part of a frame wakes the thread."""
        since_s = time.monotonic()
        while not (taken := self._mailbox.take(_REST_S if self._engine.keeps_messages else None)):
            if time.monotonic() - since_s >= _REST_S:
                self._engine.rest()
        return taken

    def _drain(self) -> list[Event] | None:
        """All events that wait, at least one unless there is work; None where the loop is to end."""
        taken = self._mailbox.take(0.0) if self._engine.has_work else self._wait()
        events: list[Event] = []
        for event in taken:
            if event is None:
                return None
            events.append(event)
        return events
