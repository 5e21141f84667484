"""Rows whose acknowledgement a draft keeps back: their request decodes plainly, holds nobody, and speculates again."""

from __future__ import annotations

import numpy as np

from paceline.types import SamplingParams, TreeShape
from target_service.draft_asker import MAX_SYNC_INFLIGHT
from target_service.draft_rows import MAX_RIDING_ROWS
from target_service.draft_session import DraftSession
from tests.support.driven_drafts import DrivenDraft, Prophet
from tests.support.tiny_draft import VOCAB
from tests.support.tiny_target import DrivenLoop, Output, always, random_prompt

TREE = TreeShape(1, 1, 2)  # so that the first request runs for a hundred steps at least
STEP_S = 0.01
TIMEOUT_S = 0.1
DEADLINE_MS = 5000.0


class Pair:
    """A request that is drafted, and one whose rows the draft takes without a word."""

    def __init__(self, loop: DrivenLoop, *, max_tokens: int) -> None:
        self.loop = loop
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        prompts = [random_prompt(n, seed=n) for n in (3, 20)]
        self.plain = [loop.generate(prompt, params) for prompt in prompts]
        texts = [prompt + tokens for prompt, tokens in zip(prompts, self.plain, strict=True)]
        self.draft = DrivenDraft(loop, Prophet(texts, np.random.default_rng(0), VOCAB))
        self.draft.connect()
        self.outputs: list[Output] = [loop.submit(50, prompts[0], params=params, decision=always(TREE))]
        self.turn(4)
        self.draft.withholds = True
        self.outputs.append(loop.submit(51, prompts[1], params=params, decision=always(TREE)))

    @property
    def session(self) -> DraftSession | None:
        """Of the second request."""
        found = [seq.draft for seq in self.loop.parts.requests.sequences.values() if seq.key.request == 51]
        return found[0] if found else None

    def turn(self, count: int = 1) -> None:
        for _ in range(count):
            self.loop.turn()
            self.draft.serve()
            self.loop.clock.now_s += STEP_S

    def finish(self) -> None:
        while self.loop.parts.requests.sequences:
            self.turn()
        self.loop.settle()
        assert [output.tokens for output in self.outputs] == self.plain


def test_a_session_whose_rows_are_never_acknowledged_is_opened_anew_though_the_draft_serves_others(make_loop):
    pair = Pair(
        make_loop(speculative_draft_timeout_s=TIMEOUT_S, speculative_tree_deadline_ms=DEADLINE_MS), max_tokens=110
    )
    pair.turn(5)
    stuck = pair.session
    assert stuck is not None and stuck.sync_inflight > 0 and not stuck.is_asking
    num_tokens = len(pair.outputs[1].tokens)
    pair.turn(int(2 * TIMEOUT_S / STEP_S))
    assert len(pair.outputs[1].tokens) >= num_tokens + int(2 * TIMEOUT_S / STEP_S) - 1, "a token a step, meanwhile"
    assert pair.draft.ended_sessions == [stuck.session]
    pair.draft.withholds = False
    pair.turn(int(2 * TIMEOUT_S / STEP_S) + 5)
    assert pair.outputs[0].finish is None, "the rule is for requests in company"
    pair.finish()
    assert pair.outputs[1].finish.stats.speculative_rounds > 0
    assert pair.loop.metric("paceline_target_trees_total", verdict="late") == 0


def test_rows_that_gather_before_an_acknowledgement_go_by_sync_and_the_request_asks_once_all_came(make_loop):
    pair = Pair(make_loop(speculative_tree_deadline_ms=DEADLINE_MS), max_tokens=180)
    num_syncs = 0
    for _ in range(MAX_RIDING_ROWS + 20):
        pair.turn()
        session = pair.session
        assert session is None or not session.is_asking
        num_syncs = num_syncs if session is None else session.sync_inflight
        assert num_syncs <= MAX_SYNC_INFLIGHT
    assert num_syncs >= 2, "the prompt's, and that of the rows since"
    assert pair.outputs[0].finish is None
    pair.draft.withholds = False
    for acknowledged in pair.draft.withheld:
        pair.loop.put(acknowledged)
    pair.turn(3)
    assert pair.session.sync_inflight == 0 and pair.session.round > 0
    pair.finish()
    assert pair.outputs[1].finish.stats.speculative_rounds > 0
