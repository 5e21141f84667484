"""StepClock: the steps of a target without a model."""

from __future__ import annotations

import asyncio


class StepClock:
    """One step for all that wait for it, at a fixed rate while something waits; 0 s: as fast as they are taken."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._due_s = 0.0
        self._tick: asyncio.Event | None = None

    async def next_step(self) -> None:
        """Returns at the next one."""
        if self._tick is None:
            loop = asyncio.get_running_loop()
            self._tick = asyncio.Event()
            self._due_s = max(self._due_s + self._step_s, loop.time())
            loop.call_at(self._due_s, self._fire)
        await self._tick.wait()

    def _fire(self) -> None:
        assert self._tick is not None
        self._tick.set()
        self._tick = None
