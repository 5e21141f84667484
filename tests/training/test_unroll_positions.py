"""What the head is trained to do is what the engine makes it do: features, logits, and every forward of a chain."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.drafter import Drafter, ExtendItem, ProposeParams
from engine.head_model import HeadModel
from engine.pages import PageAllocator, PageTable
from engine.plan import StepBuilder
from engine.rope import cos_sin_table
from engine.target_model import TargetModel
from engine.tp import TpGroup
from tests.support.tiny_target import TinyTarget, random_prompt
from tests.support.tiny_training import small_config
from training.batches import Batch, BatchRules
from training.checkpoint import Checkpoint
from training.head_network import HeadNetwork
from training.loss_rows import TorchRows
from training.target import Target
from training.teacher import Lesson, Teacher
from training.unroll import Unroll, UnrollRules

PAGE_SIZE, DEPTHS = 4, 4


class Setup:
    """A trained head in both forms, and its target."""

    def __init__(self, model_path: Path, out: Path) -> None:
        self.target = Target.of(small_config(model_path, out).run)
        self.checkpoint = Checkpoint.load(out / "train" / "checkpoint.pt")
        self.network = HeadNetwork(self.checkpoint.config)
        self.network.load_state_dict(self.checkpoint.weights)
        self.head = HeadModel.load(
            out / "head", model_path, dtype=torch.float32, ops=self.target.ops, device=self.target.device
        )
        self.model = TargetModel.load(
            model_path,
            head_path=out / "head",
            dtype=torch.float32,
            ops=self.target.ops,
            device=self.target.device,
            tp=TpGroup(),
        )
        layers = self.checkpoint.config.aux_layers(self.target.config.num_layers)
        rules = BatchRules(batch_tokens=64, sequence_tokens=64, question_weight=1.0, seed=0)
        self.teacher = Teacher(self.target, layers, vocabulary=self.checkpoint.vocabulary, rules=rules)

    def lesson(self, *conversations: list[int]) -> Lesson:
        lengths = np.array([len(tokens) for tokens in conversations])
        tokens = np.zeros((len(conversations), lengths.max()), np.int64)
        for row, conversation in enumerate(conversations):
            tokens[row, : len(conversation)] = conversation
        weights = (np.arange(lengths.max()) < lengths[:, None]).astype(np.float32)
        return self.teacher.teach(Batch(tokens, lengths, weights))

    @torch.no_grad()
    def depths(self, lesson: Lesson) -> list[Tensor]:
        """The hidden states [b, t, H] of every depth, before the final norm."""
        config = self.checkpoint.config
        table = cos_sin_table(config.rope, head_dim=config.head_dim, max_position=256, device=self.target.device)
        draft_ids = self.checkpoint.vocabulary.draft_ids
        rules = UnrollRules(DEPTHS, 1.0)
        unroll = Unroll(self.target.ends().embedding, table, draft_ids, rules=rules, rows=TorchRows())
        hidden, past, found = self.network.fuse(lesson.aux), None, []
        for depth in range(DEPTHS):
            hidden, past = unroll._forward(self.network, lesson, hidden, depth=depth, past=past)
            found.append(hidden)
        return found

    def features(self, tokens: list[int]) -> tuple[Tensor, Tensor]:
        """Of the engine's own target, one conversation alone: features and logits of every row."""
        table = table_of(len(tokens))
        builder = StepBuilder(PAGE_SIZE)
        for i, token in enumerate(tokens):
            builder.add_chunk(table, np.array([token], np.int32), i, sample=True)
        plan = builder.build()
        output = self.model.step(plan, self.model.make_cache(len(table.pages), PAGE_SIZE))
        assert output.features is not None and output.logits is not None
        return output.features.clone(), output.logits.clone()


def table_of(num_tokens: int) -> PageTable:
    table = PageTable(PageAllocator(64, PAGE_SIZE))
    table.reserve(num_tokens)
    return table


@pytest.fixture(scope="module")
def setup(chat_target: TinyTarget, trained_once: Path) -> Setup:
    return Setup(chat_target.model_path, trained_once)


def test_features_of_a_batch_are_the_engines_own(setup: Setup) -> None:
    conversations = [random_prompt(9, seed=1), random_prompt(5, seed=2)]
    lesson = setup.lesson(*conversations)
    fused = setup.network.fuse(lesson.aux)
    for row, tokens in enumerate(conversations):
        features, _ = setup.features(tokens)
        torch.testing.assert_close(fused[row, : len(tokens)], features, rtol=1e-4, atol=1e-4)
        assert not lesson.aux[row, len(tokens) :].any()


def test_the_lesson_is_the_targets_distribution_within_the_draft_vocabulary(setup: Setup) -> None:
    tokens = random_prompt(9, seed=3)
    lesson = setup.lesson(tokens, random_prompt(4))
    _, logits = setup.features(tokens)
    ids = setup.checkpoint.target_ids
    whole = logits.softmax(-1)
    torch.testing.assert_close(lesson.probs[0] * lesson.mass[0, :, None], whole[:, ids], rtol=1e-3, atol=1e-6)
    guesses = [ids[i].item() if i >= 0 else None for i in lesson.best[0].tolist()]
    assert guesses == [token if token in ids else None for token in logits.argmax(-1).tolist()]


def test_a_lower_temperature_sharpens_what_is_taught(setup: Setup) -> None:
    batch = Batch(np.array([random_prompt(6)]), np.array([6]), np.ones((1, 6), np.float32))
    plain = setup.teacher.teach(batch)
    setup.teacher._temperature = 0.5
    sharp = setup.teacher.teach(batch)
    setup.teacher._temperature = 1.0
    squared = plain.probs**2
    torch.testing.assert_close(sharp.probs, squared / squared.sum(-1, keepdim=True), rtol=1e-3, atol=1e-6)
    assert torch.equal(sharp.mass, plain.mass)


def test_conversations_shorter_than_a_chain_teach_nothing_past_their_end(setup: Setup) -> None:
    lesson = setup.lesson([1, 4])
    unroll = Unroll(
        setup.target.ends().embedding,
        torch.zeros(64, setup.checkpoint.config.head_dim),
        setup.checkpoint.vocabulary.draft_ids,
        rules=UnrollRules(DEPTHS, 0.8),
        rows=TorchRows(),
    )
    unrolled = unroll.run(setup.network, lesson)
    unrolled.loss.backward()
    setup.network.zero_grad()
    assert unrolled.loss.item() == 0 and not unrolled.sums.any()


def test_an_exported_head_gives_equal_logits_in_the_engine(setup: Setup) -> None:
    tokens = random_prompt(12, seed=4)
    lesson = setup.lesson(tokens)
    drafter = Recorder(setup.head)
    drafter.extend(setup.features(tokens)[0][:-1], tokens[1:], num_steps=1)
    with torch.no_grad():
        wanted = setup.network.lm_head(setup.network.norm(setup.depths(lesson)[0][0, :-1]))
    torch.testing.assert_close(setup.head.logits(drafter.forwards[0]), wanted, rtol=1e-4, atol=1e-4)


def test_every_forward_of_a_chain_is_the_depth_that_it_was_trained_as(setup: Setup) -> None:
    """The drafter's own guesses become the conversation, so that both consume the same tokens."""
    tokens = random_prompt(10, seed=5)
    drafter = Recorder(setup.head)
    guesses = drafter.extend(setup.features(tokens)[0][:-1], tokens[1:], num_steps=DEPTHS)
    lesson = setup.lesson([*tokens, *guesses])
    start = len(tokens) - 2  # the last true row: its token is the newest one
    hidden = setup.depths(lesson)
    for depth in range(DEPTHS):
        torch.testing.assert_close(drafter.forwards[depth][-1], hidden[depth][0, start], rtol=1e-4, atol=1e-4)
    ids = setup.checkpoint.target_ids
    with torch.no_grad():
        wanted = [ids[setup.network.lm_head(setup.network.norm(h[0, start])).argmax()].item() for h in hidden]
    assert guesses == wanted


class Recorder:
    """A drafter of one session, whose every forward's result is kept."""

    def __init__(self, head: HeadModel) -> None:
        self.forwards: list[Tensor] = []
        self._head = head

    def extend(self, features: Tensor, tokens: list[int], *, num_steps: int) -> list[int]:
        """The chain that it proposes after the rows."""
        drafter = Drafter(self._head, self._head.make_cache(64, PAGE_SIZE), 512)
        forward = drafter._forward
        drafter._forward = lambda *args, **kwargs: self._keep(forward(*args, **kwargs))  # type: ignore[method-assign]
        params = ProposeParams(num_steps, 1, num_steps + 1, seed=0, temperature=0.0)
        item = ExtendItem(table_of(64), 0, np.array(tokens, np.int32), features, params)
        (tree,) = drafter.extend([item])
        assert tree is not None
        return tree.tokens[1:].tolist()

    def _keep(self, hidden: Tensor) -> Tensor:
        self.forwards.append(hidden.clone())
        return hidden
