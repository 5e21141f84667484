"""What an autoscaler reads: figures of queue, targets and drafts, as they are when it asks."""

from __future__ import annotations

from prometheus_client import generate_latest

from paceline.v1 import common_pb2
from tests.router.conftest import soon


def scraped(rig) -> dict[str, float]:
    """Samples by name and labels, as the text format writes them."""
    lines = generate_latest(rig.router.registry).decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


async def scraped_when(rig, name: str, value: float) -> dict[str, float]:
    """The first scrape that shows this value."""

    async def ask() -> dict[str, float]:
        while scraped(rig).get(name) != value:
            await rig.info()
        return scraped(rig)

    return await soon(ask())


async def test_queue_and_targets_are_shown(make_target, make_rig) -> None:
    target = await make_target(slots=1)
    rig = await make_rig([target])
    stream = await target.next_stream()
    calls = [rig.generate([5] * 10, tenant=tenant, max_tokens=90, ignore_eos=True) for tenant in "xyy"]
    await stream.next_submission()
    await rig.info_when(lambda info: info.queued_requests == 2)
    figures = scraped(rig)
    assert figures["vllm:num_requests_waiting"] == 2
    assert figures["vllm:num_requests_running"] == 1
    assert figures["paceline_router_queue_tokens"] == 200
    assert figures["paceline_router_queue_tenants"] >= 1
    assert figures[f'paceline_router_target_running{{target="{target.address}"}}'] == 1
    assert figures[f'paceline_router_target_free_slots{{target="{target.address}"}}'] == 0
    for call in calls:
        call.cancel()


async def test_each_draft_is_shown_and_all_of_them_together(make_target, make_draft, make_rig) -> None:
    target, drafts = await make_target(), [await make_draft(), await make_draft()]
    rig = await make_rig([target], drafts)
    for draft in drafts:
        await draft.watched.wait()
    await rig.info_when(lambda info: all(state.ready for state in info.drafts))
    first, second = (f'{{draft="{draft.address}"}}' for draft in drafts)
    drafts[0].load(num_sessions=4, busy=0.2, propose_ms=3.0, num_pages=100, free_pages=10)
    figures = await scraped_when(rig, f"paceline_router_draft_sessions{first}", 4)
    assert abs(figures[f"paceline_router_draft_load{first}"] - 0.9) < 1e-9
    assert figures[f"paceline_router_draft_load{second}"] == 0
    assert figures[f"paceline_router_draft_busy{first}"] == 0.2
    assert figures[f"paceline_router_draft_propose_seconds{first}"] == 0.003
    assert figures["paceline_router_draft_fleet_sessions"] == 4
    assert abs(figures["paceline_router_draft_fleet_load"] - 0.45) < 1e-9
    drafts[1].load(draining=True)
    await drafts[0].die()
    figures = await scraped_when(rig, 'paceline_router_drafts{state="unreachable"}', 1)
    assert figures['paceline_router_drafts{state="draining"}'] == 1
    assert figures["paceline_router_draft_fleet_load"] == 1


async def test_late_rounds_are_counted_by_draft(make_target, make_draft, make_rig, collect) -> None:
    target, draft = await make_target(), await make_draft()
    rig = await make_rig([target], [draft])
    stream = await target.next_stream()
    await draft.watched.wait()
    await rig.info_when(lambda info: info.drafts[0].ready and info.targets[0].ready)
    call = rig.generate(max_tokens=1)
    number = (await stream.next_submission()).request
    stream.tokens(number, 0, [9])
    stream.finish(number, stats=common_pb2.SpeculationStats(speculative_rounds=9, rounds=12, late_rounds=3))
    await collect(call)
    figures = scraped(rig)
    label = f'{{draft="{draft.address}"}}'
    assert figures[f"paceline_router_draft_rounds_total{label}"] == 12
    assert figures[f"paceline_router_draft_late_rounds_total{label}"] == 3


async def test_refusals_are_counted_by_their_status(make_target, make_rig, failure) -> None:
    rig = await make_rig([await make_target(slots=0)], max_queued_requests=1)
    waiting = rig.generate()
    await rig.info_when(lambda info: info.queued_requests == 1)
    await failure(rig.generate())
    await failure(rig.generate(priority=99))
    figures = scraped(rig)
    assert figures['paceline_router_refusals_total{code="RESOURCE_EXHAUSTED"}'] == 1
    assert figures['paceline_router_refusals_total{code="INVALID_ARGUMENT"}'] == 1
    waiting.cancel()
