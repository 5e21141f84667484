"""The Python clients against a scripted router: what they send, what they give, what they refuse."""

from __future__ import annotations

import grpc
import pytest

from client import (
    AsyncPacelineClient,
    DeadlineError,
    GenerateOptions,
    Message,
    PacelineClient,
    RequestCancelledError,
    Sampling,
    ServiceFailureError,
)
from paceline.errors import (
    CapacityError,
    InvalidInputError,
    MismatchError,
    PacelineError,
    UnavailableError,
    UnsupportedFieldError,
)
from paceline.types import FinishReason, TreeShape

HELLO_IDS = (5, 6, 7, 0)


def test_deltas_come_as_the_router_sent_them_and_result_joins_them(router):
    with PacelineClient(router.address) as client:
        generation = client.generate("Say hello")
        texts = [delta.text for delta in generation]
        completion = generation.result()
    assert texts == ["Hel", "lo", ""]
    assert (completion.text, completion.token_ids, completion.prompt_ids) == ("Hello", HELLO_IDS, (1, 2, 3))
    assert completion.finish_reason is FinishReason.STOP
    assert completion.stats.mean_accepted_length == 2.5
    assert 0 < completion.first_token_s <= completion.last_token_s


async def test_the_async_client_gives_the_same_completion(router):
    async with AsyncPacelineClient(router.address) as client:
        generation = client.generate("Say hello")
        offsets = [delta.offset async for delta in generation]
        completion = await generation.result()
    assert offsets == [0, 2, 3]
    assert (completion.text, completion.token_ids) == ("Hello", HELLO_IDS)


def test_each_kind_of_prompt_travels_in_its_own_field(router):
    with PacelineClient(router.address) as client:
        for prompt in ("plain text", [1, 2, 3], [Message("user", "hi")], []):
            client.generate(prompt).result()
    text, ids, chat, empty = router.requests
    assert text.text == "plain text"
    assert list(ids.token_ids.ids) == [1, 2, 3]
    assert (chat.chat.messages[0].role, chat.chat.messages[0].content) == ("user", "hi")
    assert empty.WhichOneof("input") == "token_ids"


def test_a_value_left_out_is_left_to_the_service(router):
    with PacelineClient(router.address) as client:
        client.generate("x").result()
        client.generate("x", sampling=Sampling(temperature=0.0, seed=0, stop_token_ids=(4,), ignore_eos=True)).result()
    bare, given = (request.sampling_params for request in router.requests)
    assert not any(bare.HasField(name) for name in ("max_tokens", "temperature", "top_k", "top_p", "min_p", "seed"))
    assert given.HasField("temperature")
    assert given.HasField("seed")
    assert (list(given.stop_token_ids), given.ignore_eos) == ([4], True)


def test_a_requests_own_word_on_speculation_travels(router):
    with PacelineClient(router.address) as client:
        for speculation in (None, False, TreeShape(5, 4, 16)):
            client.generate("x", options=GenerateOptions(speculation=speculation)).result()
    policy, off, tree = router.requests
    assert not policy.HasField("speculation")
    assert off.speculation.disable
    assert (tree.speculation.shape.num_steps, tree.speculation.shape.num_draft_tokens) == (5, 16)


def test_how_a_request_wants_to_be_served_travels_where_it_is_said(router):
    with PacelineClient(router.address) as client:
        for options in (GenerateOptions(), GenerateOptions(tenant="a", priority=0, deadline_s=1.5)):
            client.generate("x", options=options).result()
    bare, given = router.requests
    assert not any(bare.HasField(name) for name in ("tenant", "priority", "deadline_s"))
    assert given.HasField("priority")
    assert (given.tenant, given.priority, given.deadline_s) == ("a", 0, 1.5)


@pytest.mark.parametrize("hint", [None, "1500", "soon"])
async def test_a_full_services_retry_hint_is_in_the_error(router, hint):
    def refuse(request, context):
        if hint is not None:
            context.set_trailing_metadata((("retry-after-ms", hint),))
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
        yield

    router.script = refuse
    expected = 1.5 if hint == "1500" else None
    with PacelineClient(router.address) as client, pytest.raises(CapacityError) as caught:
        client.generate("x").result()
    assert caught.value.retry_after_s == expected
    async with AsyncPacelineClient(router.address) as client:
        with pytest.raises(CapacityError) as caught:
            await client.generate("x").result()
    assert caught.value.retry_after_s == expected


@pytest.mark.parametrize(
    "values",
    [{"max_tokens": 0}, {"max_tokens": -1}, {"temperature": float("nan")}, {"top_p": 0.0}, {"seed": 2**64}],
)
def test_a_value_out_of_its_range_is_refused_before_it_is_sent(values):
    name = next(iter(values))
    with pytest.raises(InvalidInputError, match=name):
        Sampling(**values)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidInputError),
        (grpc.StatusCode.UNIMPLEMENTED, UnsupportedFieldError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, CapacityError),
        (grpc.StatusCode.FAILED_PRECONDITION, MismatchError),
        (grpc.StatusCode.UNAVAILABLE, UnavailableError),
        (grpc.StatusCode.INTERNAL, ServiceFailureError),
    ],
)
async def test_a_status_becomes_a_typed_error_with_the_services_message(router, code, kind):
    def refuse(request, context):
        context.abort(code, "top_p is 7; it must be at most 1")
        yield

    router.script = refuse
    with PacelineClient(router.address) as client, pytest.raises(kind, match="top_p is 7"):
        client.generate("x").result()
    async with AsyncPacelineClient(router.address) as client:
        with pytest.raises(kind, match="top_p is 7"):
            await client.generate("x").result()


def test_info_names_the_model(router):
    with PacelineClient(router.address) as client:
        assert client.info().info.model_name == "scripted"


def test_every_typed_error_has_an_exit_code_that_is_not_zero():
    kinds = set(PacelineError.__subclasses__())
    assert {RequestCancelledError, DeadlineError, ServiceFailureError} <= kinds
    assert all(kind.exit_code > 0 for kind in kinds)
