"""LinkProgress: what clients wait for in a target's messages, brought to their requests."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from paceline.codec import decode_finish_reason, decode_stats
from paceline.errors import CapacityError
from paceline.v1 import target_pb2
from router.adaptive import RoundReport
from router.flights import Flights
from router.link_listener import TargetListener
from router.live_request import DeltaGapError
from router.serve_codec import split_deltas, split_rounds
from router.target_end import end_of

if TYPE_CHECKING:
    from router.target_link import TargetLink

_log = logging.getLogger(__name__)


class LinkProgress:
    """Tokens, rounds and ends of the requests on one link. Those of a request that has left are passed over."""

    def __init__(self, link: TargetLink, flights: Flights, listener: TargetListener) -> None:
        self._link = link
        self._flights = flights
        self._listener = listener

    def take(self, message: target_pb2.ServeResponse) -> int:
        """Returns the number of new tokens. Raises WireError."""
        new_tokens = self._take_deltas(message.deltas) if message.HasField("deltas") else 0
        if message.HasField("rounds"):
            self._take_rounds(message.rounds)
        for finish in message.finishes:
            self._take_finish(finish)
        return new_tokens

    def _take_deltas(self, deltas: target_pb2.TokenDeltas) -> int:
        find = self._flights.get
        new_tokens = 0
        for number, offset, tokens in split_deltas(deltas):
            live = find(number)
            if live is None:
                continue
            try:
                new_tokens += live.accept(offset, tokens)
            except DeltaGapError as error:
                where = self._link.address
                _log.error("target %s, request %s: %s; replaying", where, live.request.request_id, error)
                self._link.cancel(live)
                self._listener.on_return(self._link, live, "gap")
            except CapacityError as error:
                self._link.cancel(live)
                live.end(error)
                self._listener.on_end(live)
        return new_tokens

    def _take_rounds(self, rounds: target_pb2.SpeculativeRounds) -> None:
        find = self._flights.get
        reports = []
        for number, shape, num_nodes, accepted in split_rounds(rounds):
            live = find(number)
            if live is not None:
                live.rounds.add(num_nodes, accepted)
                reports.append(RoundReport(live, shape, accepted, num_nodes == 1))
        self._listener.on_rounds(self._link, reports)

    def _take_finish(self, finish: target_pb2.Finish) -> None:
        live = self._flights.get(finish.request)
        if live is None:
            return
        outcome = end_of(decode_finish_reason(finish.reason), finish.status_code, finish.status_message)
        self._flights.remove(live, stats=decode_stats(finish.stats) if finish.HasField("stats") else None)
        live.end(outcome)
        self._listener.on_end(live)
