"""A mailbox whose thread does nothing but read, where a test has lanes and no engine."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from paceline.mailbox import Mailbox
from tests.support.waiting import WAIT_S


@contextlib.contextmanager
def reading() -> Iterator[Mailbox[Any]]:
    """Events that are put there are dropped: a lane's user keeps its own."""
    mailbox = Mailbox[Any]()

    def read() -> None:
        while None not in mailbox.take(None):
            pass
        mailbox.close()

    thread = threading.Thread(target=read, name="lane reader", daemon=True)
    thread.start()
    try:
        yield mailbox
    finally:
        mailbox.put(None)
        thread.join(WAIT_S)
        assert not thread.is_alive()
