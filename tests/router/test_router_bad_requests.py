"""What a client may get wrong, and how it is told: a status, the field, its value, and what to do."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import grpc
import pytest

from paceline.defaults import DEFAULT_MODEL_PATH
from paceline.v1 import common_pb2, router_pb2

INVALID = grpc.StatusCode.INVALID_ARGUMENT
UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED
CHAT = router_pb2.ChatMessages
MESSAGE = router_pb2.ChatMessage
BAD_FIELDS = [
    ({"ids": []}, INVALID, "the prompt is empty"),
    ({"text": ""}, INVALID, "the prompt is empty"),
    ({"chat": CHAT()}, INVALID, "chat has no messages"),
    ({"chat": CHAT(messages=[MESSAGE(content="hi")])}, INVALID, "chat message 0 has no role"),
    (
        {"chat": CHAT(messages=[MESSAGE(role="user", content="hi"), MESSAGE(role="robot", content="hi")])},
        INVALID,
        "chat message 1 has the role 'robot'; set it to one of system, user, assistant, tool",
    ),
    ({"chat": CHAT(messages=[MESSAGE(role="User", content="hi")])}, INVALID, "has the role 'User'; set it to"),
    ({"chat": CHAT(messages=[MESSAGE(role="r" * 10_000, content="hi")])}, INVALID, f"the role '{'r' * 32}'; set it"),
    ({"ids": [5, 49152]}, INVALID, "token id 49152 is outside the vocabulary of 49152"),
    ({"ids": [5] * 64}, INVALID, "the prompt has 64 tokens; a context of 64"),
    ({"text": "word " * 100}, INVALID, "tokens; a context of 64"),
    ({"text": "word " * 100_000}, INVALID, "tokens; a context of 64"),
    ({"max_tokens": 0}, INVALID, "max_tokens is 0; it must be at least 1"),
    ({"temperature": -1.0}, INVALID, "temperature is -1.0"),
    ({"temperature": math.nan}, INVALID, "temperature is nan"),
    ({"top_p": 0.0}, INVALID, "top_p is 0.0"),
    ({"top_p": 1.5}, INVALID, "top_p is 1.5"),
    ({"top_p": math.nan}, INVALID, "top_p is nan"),
    ({"min_p": 2.0}, INVALID, "min_p is 2.0"),
    ({"stop_token_ids": list(range(65))}, INVALID, "stop_token_ids is 65"),
    ({"stop_token_ids": [70_000]}, INVALID, "stop_token_ids holds 70000"),
    ({"request_id": "x" * 300}, INVALID, "request_id has 300 characters"),
    ({"speculation": (True, (3, 1, 4))}, INVALID, "both disable and shape"),
    ({"speculation": (False, (3, 1, 65))}, INVALID, "num_draft_tokens is 65"),
    ({"speculation": (False, (3, 0, 4))}, INVALID, "eagle_topk is 0"),
    ({"stop": ["x"]}, UNIMPLEMENTED, "stop is not supported yet"),
    ({"n": 1}, UNIMPLEMENTED, "n is not supported yet"),
    ({"logit_bias": {1: 2.0}}, UNIMPLEMENTED, "logit_bias is not supported yet"),
    ({"frequency_penalty": 0.0}, UNIMPLEMENTED, "frequency_penalty is not supported yet"),
    ({"presence_penalty": 0.1}, UNIMPLEMENTED, "presence_penalty is not supported yet"),
    ({"repetition_penalty": 1.0}, UNIMPLEMENTED, "repetition_penalty is not supported yet"),
    ({"logprobs": 0}, UNIMPLEMENTED, "logprobs is not supported yet"),
    ({"grammar": "x"}, UNIMPLEMENTED, "grammar is not supported yet"),
    ({"priority": 11}, INVALID, "priority is 11; it must be -10 to 10"),
    ({"deadline_s": 0.0}, INVALID, "deadline_s is 0; it must be a finite number above 0"),
    ({"deadline_s": math.nan}, INVALID, "deadline_s is nan"),
    ({"tenant": "x" * 200}, INVALID, "tenant has 200 characters; it must have at most 128"),
    ({"lora_id": "x"}, UNIMPLEMENTED, "lora_id is not supported yet"),
]


async def test_each_bad_field_is_refused_by_name_and_the_router_goes_on(
    make_target, make_rig, collect, failure
) -> None:
    target = await make_target(context_length=64)
    rig = await make_rig([target])
    stream = await target.next_stream()
    await rig.info_when(lambda info: info.targets[0].ready)
    for fields, status, words in BAD_FIELDS:
        given = dict(fields)
        if "speculation" in given:
            disable, shape = given["speculation"]
            names = ("num_steps", "eagle_topk", "num_draft_tokens")
            tree = common_pb2.TreeShape(**dict(zip(names, shape, strict=True)))
            given["speculation"] = router_pb2.SpeculationOverride(disable=disable, shape=tree)
        code, message = await failure(rig.generate(**given))
        assert code is status, (fields, message)
        assert words in message, (fields, message)
    assert stream.submits.empty()
    assert rig.router.dispatcher.num_live == 0
    call = rig.generate([5] * 63, max_tokens=50)
    submission = await stream.next_submission()
    assert submission.sampling_params.max_tokens == 1
    stream.tokens(submission.request, 0, [9])
    stream.finish(submission.request)
    assert (await collect(call))[-1].usage.completion_tokens == 1


async def test_a_request_without_input_is_refused(make_target, make_rig, failure) -> None:
    rig = await make_rig([await make_target()])
    code, message = await failure(rig.stub.Generate(router_pb2.GenerateRequest()))
    assert code is INVALID
    assert "set one of text, token_ids and chat" in message


async def test_a_prompt_that_turns_out_too_long_for_the_target_is_refused(make_target, make_rig, failure) -> None:
    target = await make_target(context_length=8)
    await target.die()
    rig = await make_rig([target])
    call = rig.generate([5] * 20)
    await rig.info_when(lambda info: info.queued_requests == 1)
    await target.start(target.port)
    code, message = await failure(call)
    assert code is INVALID
    assert "20 tokens; a context of 8" in message


async def test_a_request_larger_than_the_pool_is_refused(make_target, make_rig, failure) -> None:
    target = await make_target(num_pages=10, pages=10)
    rig = await make_rig([target])
    await target.next_stream()
    code, message = await failure(rig.generate([5] * 100, max_tokens=100))
    assert code is INVALID
    assert "(100 + 100) need 17 pages, the largest target has 10" in message


async def test_chat_without_a_template_says_what_to_do(make_target, make_rig, failure, tmp_path: Path) -> None:
    shutil.copy(Path(DEFAULT_MODEL_PATH) / "tokenizer.json", tmp_path)
    rig = await make_rig([await make_target()], model_path=str(tmp_path))
    chat = CHAT(messages=[MESSAGE(role="user", content="hi")])
    code, message = await failure(rig.generate(chat=chat))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "send text or token_ids" in message


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
async def test_the_roles_that_templates_know_are_rendered(make_target, make_rig, tokenizer, role: str) -> None:
    target = await make_target()
    rig = await make_rig([target])
    stream = await target.next_stream()
    call = rig.generate(chat=CHAT(messages=[MESSAGE(role=role, content="hi")]))
    text = tokenizer.decode(list((await stream.next_submission()).prompt_ids), skip_special_tokens=False)
    call.cancel()
    assert text.endswith(f"<|im_start|>{role}\nhi<|im_end|>\n<|im_start|>assistant\n")


async def test_a_role_that_the_models_template_names_is_taken(make_target, make_rig, tmp_path: Path) -> None:
    shutil.copy(Path(DEFAULT_MODEL_PATH) / "tokenizer.json", tmp_path)
    source = "{% for m in messages %}{% if m.role in ['user', 'ipython'] %}{{ m.content }}{% endif %}{% endfor %}"
    (tmp_path / "chat_template.jinja").write_text(source)
    target = await make_target()
    rig = await make_rig([target], model_path=str(tmp_path))
    stream = await target.next_stream()
    call = rig.generate(chat=CHAT(messages=[MESSAGE(role="ipython", content="hi")]))
    assert list((await stream.next_submission()).prompt_ids)
    call.cancel()


async def test_a_targets_error_reaches_the_client_with_its_status(make_target, make_rig, failure) -> None:
    target = await make_target()
    rig = await make_rig([target])
    stream = await target.next_stream()
    call = rig.generate()
    submission = await stream.next_submission()
    stream.finish(
        submission.request,
        reason=common_pb2.FINISH_REASON_ERROR,
        status_code=grpc.StatusCode.OUT_OF_RANGE.value[0],
        status_message="the token is a lie",
    )
    assert await failure(call) == (grpc.StatusCode.OUT_OF_RANGE, "the token is a lie")


async def test_chat_is_rendered_and_text_is_taken_as_it_stands(make_target, make_rig, tokenizer) -> None:
    target = await make_target()
    rig = await make_rig([target])
    stream = await target.next_stream()
    call = rig.generate(chat=CHAT(messages=[MESSAGE(role="user", content="hi")]))
    ids = list((await stream.next_submission()).prompt_ids)
    call.cancel()
    text = tokenizer.decode(ids, skip_special_tokens=False)
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    call = rig.generate(text=text)
    assert list((await stream.next_submission()).prompt_ids) == ids
    call.cancel()


async def test_random_bytes_for_a_request_are_refused_and_the_router_goes_on(make_target, make_rig, failure) -> None:
    target = await make_target()
    rig = await make_rig([target])
    await target.next_stream()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{rig.router.port}") as channel:
        generate = channel.unary_stream("/paceline.v1.RouterService/Generate")
        code, message = await failure(generate(b"\xff\x00\x13 no message"))
    assert code is INVALID
    assert "no GenerateRequest" in message
    assert (await rig.info()).targets[0].ready
