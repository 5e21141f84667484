"""Figures of queue, targets and drafts as a scrape finds them: what an autoscaler and an operator go by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from router.draft_link import DraftLink
from router.fleet import Fleet
from router.live_request import LiveRequest
from router.placement import DraftView, TargetView
from router.queue import RequestQueue


class FleetCollector(Collector):
    """Reads the fleet anew at each scrape, so that replicas come and go."""

    def __init__(self, fleet: Fleet, queue: RequestQueue[LiveRequest]) -> None:
        self._fleet = fleet
        self._queue = queue

    def describe(self) -> Iterable[Metric]:
        """Nothing: it would take a scrape to know."""
        return ()

    def collect(self) -> Iterator[Metric]:
        queue = self._queue
        yield _one("vllm:num_requests_waiting", "Requests in the queue", len(queue))
        running = sum(link.num_flights for link in self._fleet.targets)
        yield _one("vllm:num_requests_running", "Requests on targets", running)
        yield _one("paceline_router_queue_tokens", "Estimated tokens, prompts too, of those that wait", queue.cost)
        yield _one("paceline_router_queue_tenants", "Tenants with requests that wait", queue.num_tenants)
        yield from _target_figures(self._fleet.target_views())
        yield from _draft_figures(self._fleet.draft_views())
        yield _states(self._fleet.drafts)


def _target_figures(views: list[TargetView]) -> Iterator[Metric]:
    figures: dict[str, tuple[str, Iterable[float]]] = {
        "running": ("Requests on a target, of all routers", [view.running_requests for view in views]),
        "free_slots": ("Requests that this router may still submit", [view.free_slots for view in views]),
        "free_pages": ("KV pages that this router may still spend", [view.free_pages for view in views]),
    }
    addresses = [view.address for view in views]
    for name, (text, values) in figures.items():
        yield _each(f"paceline_router_target_{name}", text, label="target", values=zip(addresses, values, strict=True))


def _draft_figures(views: list[DraftView]) -> Iterator[Metric]:
    figures: dict[str, tuple[str, Iterable[float]]] = {
        "sessions": ("Sessions of a draft, of all targets", [view.num_sessions for view in views]),
        "load": ("Share in use of sessions, pages or time, the scarcest of them", [view.load() for view in views]),
        "busy": ("Share of the last second that a draft's model was at work", [view.busy for view in views]),
        "propose_seconds": ("From a batch's arrival to its trees", [view.propose_ms / 1e3 for view in views]),
    }
    addresses = [view.address for view in views]
    for name, (text, values) in figures.items():
        yield _each(f"paceline_router_draft_{name}", text, label="draft", values=zip(addresses, values, strict=True))
    ready = [view for view in views if view.ready]
    sessions = sum(view.num_sessions for view in views)
    yield _one("paceline_router_draft_fleet_sessions", "Sessions of all drafts", sessions)
    load = sum(view.load() for view in ready) / len(ready) if ready else 1.0
    yield _one("paceline_router_draft_fleet_load", "Mean load of the ready drafts; 1 where there is none", load)


def _states(drafts: Iterable[DraftLink]) -> Metric:
    counts = {"ready": 0, "draining": 0, "unreachable": 0}
    for link in drafts:
        counts["ready" if link.ready else "draining" if link.info is not None else "unreachable"] += 1
    return _each("paceline_router_drafts", "Drafts by state", label="state", values=counts.items())


def _one(name: str, text: str, value: float) -> Metric:
    family = Metric(name, text, "gauge")
    family.add_sample(name, {}, value)
    return family


def _each(name: str, text: str, *, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    family = Metric(name, text, "gauge")
    for key, value in values:
        family.add_sample(name, {label: key}, value)
    return family
