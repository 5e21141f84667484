"""What a router has not taken is merged, in order, and nothing of it is lost."""

import asyncio

import numpy as np
import pytest

from paceline.errors import WireError
from paceline.mailbox import Mailbox
from paceline.types import FinishReason
from target_service.codec import encode_batch
from target_service.credits import Grant
from target_service.emission import Finished, StreamBatch
from target_service.events import StreamClosed, StreamOpened
from target_service.router_streams import RouterStreams
from target_service.token_columns import TokenColumns, join


def batch(step: int, *deltas: tuple[int, int, list[int]]) -> StreamBatch:
    made = StreamBatch(step=step, credits=Grant(step, 10 * step))
    if deltas:
        made.deltas.append(columns(*deltas))
    return made


def columns(*deltas: tuple[int, int, list[int]]) -> TokenColumns:
    requests, offsets, tokens = zip(*deltas, strict=True)
    lengths = np.array([len(part) for part in tokens], np.int64)
    return TokenColumns(np.array(requests, np.uint64), np.array(offsets), lengths, np.concatenate(tokens))


async def take(stream) -> StreamBatch:
    async for made in stream.batches():
        return made
    raise AssertionError("the stream ended")


async def test_batches_of_a_slow_router_merge_into_one():
    stream = RouterStreams(Mailbox()).open()
    stream.push(batch(1, (7, 0, [1, 2]), (8, 4, [9])))
    stream.push(batch(2, (7, 2, [3])))
    last = batch(3, (8, 5, [10, 11]), (7, 3, [4]))
    last.finishes.append(Finished(7, FinishReason.STOP, None))
    stream.push(last)
    message = encode_batch(await take(stream))
    assert message.step == 3
    assert list(message.deltas.request) == [7, 8]
    assert list(message.deltas.offset) == [0, 4]
    assert list(message.deltas.num_tokens) == [4, 3]
    assert list(message.deltas.tokens) == [1, 2, 3, 4, 9, 10, 11]
    assert [finish.request for finish in message.finishes] == [7]
    assert (message.credits.slots, message.credits.pages) == (3, 30)


def test_many_steps_join_into_each_requests_tokens_in_the_order_in_which_requests_appeared():
    rng = np.random.default_rng(0)
    parts, texts = [], {}
    for _ in range(20):
        deltas = []
        for request in rng.permutation(9)[: rng.integers(1, 9)].tolist():
            tokens = rng.integers(0, 100, rng.integers(1, 5)).tolist()
            offset = len(texts.setdefault(request, []))
            texts[request] += tokens
            deltas.append((request, offset, tokens))
        parts.append(columns(*deltas))
    joined = join(parts)
    assert joined.request.tolist() == list(texts)
    assert joined.offset.tolist() == [0] * len(texts)
    assert joined.num_tokens.tolist() == [len(text) for text in texts.values()]
    assert joined.tokens.tolist() == [token for text in texts.values() for token in text]


async def test_a_fast_router_gets_one_batch_a_step():
    stream = RouterStreams(Mailbox()).open()
    batches = stream.batches()
    for step in (1, 2):
        stream.push(batch(step, (7, step, [step])))
        assert (await anext(batches)).step == step


async def test_what_is_pending_comes_before_the_end():
    stream = RouterStreams(Mailbox()).open()
    stream.push(batch(1, (7, 0, [1])))
    stream.end()
    assert [made.step async for made in stream.batches()] == [1]


async def test_a_routers_fault_is_raised_to_the_writer():
    stream = RouterStreams(Mailbox()).open()
    stream.end(WireError("nonsense"))
    with pytest.raises(WireError, match="nonsense"):
        await take(stream)


async def test_a_closed_stream_gets_nothing_and_the_engine_hears_of_it():
    mailbox = Mailbox()
    streams = RouterStreams(mailbox)
    stream = streams.open()
    streams.close(stream)
    streams.push({stream.number: batch(1, (7, 0, [1]))})
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(take(stream), 0.01)
    assert mailbox.take(0) == [StreamOpened(stream.number), StreamClosed(stream.number)]
