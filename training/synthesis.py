"""Synthesis: fills the data folder, by the target's own decoding or from a file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError, InvalidInputError
from paceline.prompt_file import read_prompts
from training.batch_decoder import BatchDecoder, fitting_seats
from training.chat_files import ChatText, read_conversations
from training.chat_seam import ChatSeam, answer_end
from training.config import DataConfig
from training.progress import Deadline, Progress
from training.seats import SeatRules
from training.shards import ShardIndex, ShardWriter
from training.sources import GivenPrompts, OwnQuestions, Source
from training.target import Target, fitting

MAX_GIVEN_TOKENS = 8192  # of a conversation that is given
_LEAST_NEW = 0.05  # share of a file's conversations


def synthesise(folder: Path, target: Target, data: DataConfig, *, seed: int, deadline: Deadline) -> ShardIndex:
    """Goes on until the folder holds data.tokens, or the source has no more; at once where it does already.

    Raises ConfigError, ModelLoadError, InvalidInputError for a bad file, StorageError, DeadlineError.
    """
    work = _Synthesis(folder, target, data, seed=seed)
    index = work.index
    if index.num_tokens < data.tokens and not index.is_exhausted:
        work.run(deadline)
    if index.num_tokens == 0:
        raise ConfigError(f"{folder} holds no conversation: every question or answer was empty or a repeat")
    return index


class _Synthesis:
    def __init__(self, folder: Path, target: Target, data: DataConfig, *, seed: int) -> None:
        self._target, self._data = target, data
        self._chat: ChatText = target.chat()
        given = data.prompts or data.conversations
        seam = None if given else ChatSeam.of(self._chat.template, self._chat.tokenizer, eos_ids=self._eos_ids)
        self.index = ShardIndex(folder, self._settings(seam, given, seed))
        self._seam = seam
        self._seed = seed
        self._writer = ShardWriter(
            self.index, shard_sequences=data.shard_sequences, vocab_size=target.config.vocab_size
        )

    @property
    def _eos_ids(self) -> tuple[int, ...]:
        ids = self._target.config.eos_token_ids
        if not ids:
            raise ConfigError(f"{self._target.path}: config.json names no eos_token_id, so nothing would end an answer")
        return ids

    def run(self, deadline: Deadline) -> None:
        if self._data.conversations:
            self._take(deadline)
        else:
            self._decode(deadline)

    def _take(self, deadline: Deadline) -> None:
        """The conversations of the file, past those that are there."""
        chat = self._chat
        end = answer_end(chat.template, chat.tokenizer, self._eos_ids)
        most = min(MAX_GIVEN_TOKENS, self._target.config.max_position_embeddings)
        first = self._writer.first_number
        for conversation in read_conversations(self._data.conversations, chat, answer_end=end, max_tokens=most):
            if conversation.number >= first:
                self._writer.add(conversation)
            if self.index.num_tokens >= self._data.tokens:
                return
            deadline.check(self._kept)
        self._writer.finish()

    def _decode(self, deadline: Deadline) -> None:
        source, rules = self._source_and_rules()
        if rules.capacity > self._target.config.max_position_embeddings:
            raise ConfigError(
                f"a conversation may take {rules.capacity} tokens and the target has positions for "
                f"{self._target.config.max_position_embeddings}: lower --max-question-tokens or --max-answer-tokens"
            )
        model = self._target.load()
        num_seats = self._data.seats or fitting_seats(model, rules.capacity)
        with fitting(self._target.device, "lower --seats or --max-answer-tokens"):
            decoder = BatchDecoder(model, source, rules, num_seats=num_seats, first=self._writer.first_number)
        index, wanted = self.index, self._data.tokens
        progress = Progress("synthesise", total=wanted, start=index.num_tokens, unit="tokens")
        try:
            while index.num_tokens < wanted:
                num_drawn, ended = decoder.step()
                for conversation in ended:
                    self._writer.add(conversation)
                self._check_last_file()
                progress.advance(num_drawn, f"{index.num_tokens:,} in files")
                if decoder.is_done:
                    self._writer.finish()
                    return
                deadline.check(self._kept)
        finally:
            progress.close(self._kept)

    def _check_last_file(self) -> None:
        """Raises ConfigError where nearly nothing in it was new: more of the same would never end."""
        last = self.index.entries[-1] if self.index.entries else None
        if self._seam is None or last is None:
            return
        drawn = last.sequences + last.duplicates + last.empty
        if last.sequences < _LEAST_NEW * drawn:
            raise ConfigError(
                f"of the last {drawn} conversations {last.duplicates} repeated an earlier question and {last.empty} "
                "were empty: raise --question-temperature, or pass --prompts"
            )

    @property
    def _kept(self) -> str:
        return f"{self.index.num_tokens:,} tokens of data in {len(self.index.entries)} files"

    def _source_and_rules(self) -> tuple[Source, SeatRules]:
        data = self._data
        source: Source
        if self._seam is not None:
            source, opening = OwnQuestions(self._seam), len(self._seam.prefix)
        else:
            prompts = self._prompts()
            source, opening = GivenPrompts(prompts), max(map(len, prompts))
        return source, SeatRules(
            joint=() if self._seam is None else self._seam.joint,
            question_ends=() if self._seam is None else self._seam.question_ends,
            answer_ends=self._eos_ids,
            max_question=0 if self._seam is None else data.max_question_tokens,
            max_answer=data.max_answer_tokens,
            max_opening=opening,
            question_temperature=data.question_temperature,
            answer_temperatures=data.temperatures,
            seed=self._seed,
        )

    def _prompts(self) -> list[list[int]]:
        lines = read_prompts(self._data.prompts)
        prompts = [self._chat.prompt_ids([{"role": "user", "content": line.text}]) for line in lines]
        kept = [prompt for prompt in prompts if len(prompt) <= self._data.max_question_tokens]
        if not kept:
            raise InvalidInputError(
                f"{self._data.prompts}: none of {len(prompts)} prompts has at most {self._data.max_question_tokens} "
                "tokens; raise --max-question-tokens"
            )
        return kept

    def _settings(self, seam: ChatSeam | None, given: str, seed: int) -> dict[str, Any]:
        """All that the conversations depend on."""
        data, digest = self._data, hashlib.sha256()
        if given:
            try:
                digest.update(Path(given).read_bytes())
            except OSError as error:
                raise InvalidInputError(f"{given}: {error.strerror}; name a file of JSON lines") from error
        settings = {
            "target": self._target.fingerprint(),
            "source": "conversations" if data.conversations else "prompts" if data.prompts else "own questions",
            "source_sha256": digest.hexdigest() if given else "",
            "prefix": [] if seam is None else seam.prefix,
            "joint": [] if seam is None else seam.joint,
            "question_temperature": data.question_temperature,
            "answer_temperatures": data.temperatures,
            "max_question_tokens": data.max_question_tokens,
            "max_answer_tokens": data.max_answer_tokens,
            "shard_sequences": data.shard_sequences,
            "dtype": str(self._target.dtype).removeprefix("torch."),
            "seed": seed,
        }
        normal: dict[str, Any] = json.loads(json.dumps(settings))
        return normal
