"""The metric that drafts scale on follows load, by Kubernetes' own formula and the manifests' own numbers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from tests.support.draft_peer import Running
from tests.support.manifests import of_kind
from tests.support.waiting import WAIT_S

ServeDraft = Callable[..., AbstractAsyncContextManager[Running]]
TOLERANCE = 0.1  # of the autoscaler: a ratio this close to 1 changes nothing


def draft_scaler(overlay: str, kind: str) -> dict[str, Any]:
    (found,) = [one for one in of_kind(overlay, kind) if one["metadata"]["name"] == "paceline-draft"]
    return found["spec"]


def desired(total: float, replicas: int, spec: dict[str, Any]) -> int:
    """desiredReplicas of a Pods metric with an AverageValue."""
    pods = spec["metrics"][0]["pods"]
    assert pods["metric"]["name"] == "paceline_draft_sessions"
    ratio = total / replicas / float(pods["target"]["averageValue"])
    wanted = replicas if abs(ratio - 1) <= TOLERANCE else math.ceil(replicas * ratio)
    return min(max(wanted, spec["minReplicas"]), spec["maxReplicas"])


async def test_more_sessions_ask_for_more_drafts_and_an_empty_one_for_the_least(serve: ServeDraft) -> None:
    spec = draft_scaler("autoscale", "HorizontalPodAutoscaler")
    async with serve(max_running_requests=1024, max_total_tokens=65_536) as running:

        def sessions() -> float:
            return running.registry.get_sample_value("paceline_draft_sessions") or 0.0

        async def settle(total: int) -> None:
            async with asyncio.timeout(WAIT_S):
                while sessions() != total:  # noqa: ASYNC110 - a gauge, set after the answer, wakes nobody
                    await asyncio.sleep(0.001)

        target = await running.connect()
        asked = []
        for total in (0, 150, 250, 700):
            await target.send(open=[(session, 8) for session in range(int(sessions()) + 1, total + 1)])
            if total:
                await target.status(total)
            await settle(total)
            asked.append(desired(sessions(), 1, spec))
        assert asked == [1, 1, 2, 4]
        await target.end()
        await running.free_pages(65_536 // 4)
        await settle(0)
        assert desired(sessions(), 4, spec) == spec["minReplicas"]


def test_keda_asks_for_the_same_number_of_drafts() -> None:
    hpa, keda = draft_scaler("autoscale", "HorizontalPodAutoscaler"), draft_scaler("autoscale-keda", "ScaledObject")
    (trigger,) = keda["triggers"]
    assert trigger["metadata"]["threshold"] == hpa["metrics"][0]["pods"]["target"]["averageValue"]
    assert trigger["metadata"]["query"].startswith("sum(paceline_draft_sessions{")
    assert (keda["minReplicaCount"], keda["maxReplicaCount"]) == (hpa["minReplicas"], hpa["maxReplicas"])
    behavior = keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior["scaleDown"] == hpa["behavior"]["scaleDown"]
