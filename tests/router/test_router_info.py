"""What GetInfo and the metrics say of a router and its fleet."""

from __future__ import annotations

import asyncio

import grpc
from prometheus_client import CollectorRegistry

from paceline.rpc import RpcServer
from paceline.stats import SpeculationStats
from paceline.types import FinishReason, SamplingParams
from router.live_request import Arrival, LiveRequest
from router.metrics import RouterMetrics
from router.request import ClientRequest
from router.stream_pacer import StreamPacer


async def test_info_shows_router_fleet_and_limits(make_target, make_draft, make_rig, tokenizer) -> None:
    target, draft = await make_target(model_name="m1"), await make_draft()
    rig = await make_rig([target], [draft], max_queued_requests=7, speculative_disable_batch_threshold=4)
    await target.next_stream()
    info = await rig.info_when(lambda info: info.drafts[0].ready and info.targets[0].ready)
    assert info.info.service == "router"
    assert info.info.incarnation
    assert (info.info.model_name, info.info.context_length, info.info.vocab_size) == ("m1", 8192, 49152)
    assert info.info.tokenizer_fingerprint == tokenizer.fingerprint
    assert info.targets[0].info == target.info
    assert info.drafts[0].info == draft.info
    assert (info.max_queued_requests, info.speculative_policy) == (7, "threshold")


async def test_a_target_that_cannot_be_reached_is_shown_with_the_reason(make_target, make_rig) -> None:
    target = await make_target()
    await target.die()
    rig = await make_rig([target])
    info = await rig.info_when(lambda info: info.targets[0].message == "nothing answers there")
    assert not info.targets[0].ready


async def test_info_says_for_how_long_a_replica_is_ready_or_not(skip_time, make_target, make_draft, make_rig) -> None:
    target, draft = await make_target(), await make_draft()
    rig = await make_rig([target], [draft])
    stream = await target.next_stream()
    await rig.info_when(lambda info: info.drafts[0].ready and info.targets[0].ready)
    skip_time(50.0)
    before = await rig.info()
    assert 50.0 <= before.targets[0].unchanged_s < 60.0
    assert 50.0 <= before.drafts[0].unchanged_s < 60.0
    stream.load(draining=True)
    await draft.die()
    after = await rig.info_when(lambda info: not info.drafts[0].ready and not info.targets[0].ready)
    assert after.targets[0].unchanged_s < 10.0
    assert after.drafts[0].unchanged_s < 10.0
    skip_time(50.0)
    assert (await rig.info()).drafts[0].unchanged_s >= 50.0


async def test_a_target_with_another_tokenizer_is_not_used(make_target, make_rig) -> None:
    target = await make_target(tokenizer_fingerprint="feedface")
    rig = await make_rig([target])
    info = await rig.info_when(lambda info: "tokenizer" in info.targets[0].message)
    assert "feedface" in info.targets[0].message
    assert not info.targets[0].ready


async def test_a_service_of_another_kind_is_named(make_target, make_rig) -> None:
    rig = await make_rig([await make_target(service="draft")])
    info = await rig.info_when(lambda info: "is a draft, not a target" in info.targets[0].message)
    assert not info.targets[0].ready


async def test_addresses_of_the_other_kind_are_told_with_the_flag_to_mend(start_peer, make_rig) -> None:
    class Named(RpcServer):
        async def start(self) -> None:
            self.address = f"127.0.0.1:{await super().start('127.0.0.1', 0)}"

        async def die(self) -> None:
            await self.stop(0)

    draft, target = [await start_peer(Named(f"paceline.v1.{kind}Service")) for kind in ("Draft", "Target")]
    rig = await make_rig([draft], [target])
    info = await rig.info_when(lambda info: all("answers" in each.message for each in (*info.targets, *info.drafts)))
    assert info.targets[0].message == "what answers there is a draft, not a target: mend the router's --targets"
    assert info.drafts[0].message == "what answers there is a target, not a draft: mend the router's --drafts"


class Babbler:
    """Answers Serve with bytes that are no message."""

    def __init__(self) -> None:
        self.server = grpc.aio.server()
        serve = grpc.stream_stream_rpc_method_handler(self._serve)
        handler = grpc.method_handlers_generic_handler("paceline.v1.TargetService", {"Serve": serve})
        self.server.add_generic_rpc_handlers((handler,))
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"

    async def _serve(self, requests, context):
        yield b"\xff\x00\x13 no message"

    async def start(self) -> None:
        await self.server.start()

    async def die(self) -> None:
        await self.server.stop(None)


async def test_a_target_that_sends_random_bytes_is_shown_and_another_serves(start_peer, make_target, make_rig) -> None:
    babbler, target = await start_peer(Babbler()), await make_target()
    rig = await make_rig([babbler, target])
    info = await rig.info_when(lambda info: "no ServeResponse" in info.targets[0].message and info.targets[1].ready)
    assert not info.targets[0].ready
    stream = await target.next_stream()
    call = rig.generate()
    await stream.next_submission()
    call.cancel()


async def test_the_router_says_hello_with_its_incarnation(make_target, make_rig) -> None:
    target = await make_target()
    rig = await make_rig([target])
    stream = await target.next_stream()
    assert stream.hello.incarnation == (await rig.info()).info.incarnation


async def test_a_finished_request_is_counted_under_vllms_names() -> None:
    registry = CollectorRegistry()
    metrics = RouterMetrics(registry)
    request = ClientRequest("r", (1, 2, 3), SamplingParams())
    pacer = StreamPacer(1, loop=asyncio.get_running_loop())
    live = LiveRequest(request, Arrival(0.0), pacer=pacer, buffer_tokens=10)
    metrics.count_start(live, 0.5)
    live.stats = SpeculationStats(4, 5, 6, 60, (4, 2))
    live.end(FinishReason.STOP)
    metrics.count_end(live, 2.0)
    value = registry.get_sample_value
    assert value("vllm:prompt_tokens_total") == 3
    assert value("vllm:request_success_total", {"finished_reason": "stop"}) == 1
    assert value("vllm:e2e_request_latency_seconds_sum") == 2
    assert value("vllm:request_queue_time_seconds_sum") == 0.5
    assert value("vllm:spec_decode_num_drafts_total") == 4
    assert value("vllm:spec_decode_num_accepted_tokens_total") == 6
    assert value("vllm:spec_decode_num_accepted_tokens_per_pos_total", {"position": "1"}) == 2


async def test_replays_and_decisions_are_counted_by_reason(make_target, make_rig) -> None:
    target = await make_target()
    rig = await make_rig([target])
    stream = await target.next_stream()
    call = rig.generate()
    submission = await stream.next_submission()
    stream.tokens(submission.request, 0, [5])
    stream.give_back(submission.request, 2)
    await stream.next_submission()
    value = rig.router.registry.get_sample_value
    assert value("paceline_router_replays_total", {"reason": "preempted"}) == 1
    assert value("paceline_router_decisions_total", {"reason": "no-draft", "speculates": "false"}) == 2
    assert value("vllm:generation_tokens_total") == 1
    assert value("vllm:num_requests_running") == 1
    call.cancel()
