"""Where the time of one round goes: what draft and target say of their steps, medians.

A round with a draft is the target's wait for trees and its step, and RPC what of the wait neither the asks nor the
draft took. A plain one, and one in halves, is the mean interval that clients see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.outcome import Run
from bench.round_sampler import SampledRound
from bench.workload import SPECULATIVE, Variant

RPC = "RPC, waiting"
_DRAFT_PARTS = {"plan": "draft: plan", "propose": "draft: propose", "answer": "draft: answer"}
_TARGET_PARTS = {
    "plan": "plan",
    "host": "launch, wait",
    "forward": "verify",
    "sample": "sample",
    "commit": "commit",
    "extend": "ask draft",
}
PARTS = (*_DRAFT_PARTS.values(), RPC, *_TARGET_PARTS.values())
_DEVICE_WORK = ("draft: propose", "verify", "sample")
_HALVES_WORK = ("verify", "sample")
_STEP = ("plan", "launch, wait", "verify", "sample", "commit")  # asks are made within the next step's wait
_IN_HALVES = 1.5  # rounds of the requests in flight to one of those that a step verifies, from which on it is a half


@dataclass(frozen=True, slots=True)
class RoundProfile:
    """The usual round of a variant at a concurrency. parts_ms has PARTS and adds up to about interval_ms.

    A round in halves has two verifies, beside which the rest is done: what is left counts as RPC and waiting.
    """

    label: str
    concurrency: int
    num_samples: int  # of the target's steps
    interval_ms: float
    parts_ms: dict[str, float]

    @property
    def overhead(self) -> float:
        """Share of the round that is neither drafting, verifying nor sampling."""
        return max(0.0, 1 - sum(self.parts_ms[part] for part in _DEVICE_WORK) / self.interval_ms)

    def figures(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "concurrency": self.concurrency,
            "samples": self.num_samples,
            "interval_ms": self.interval_ms,
            "overhead": self.overhead,
            "parts_ms": self.parts_ms,
        }


def profile_of(runs: Sequence[Run], rounds: Sequence[SampledRound]) -> RoundProfile | None:
    """Of runs of one variant at one concurrency, and what was sampled meanwhile. None where too little was."""
    speculates = runs[0].mode == SPECULATIVE
    least_nodes = 2 if speculates else 1
    target = [sample for sample in rounds if sample.service == "target" and sample.most_nodes >= least_nodes]
    draft = [sample for sample in rounds if sample.service == "draft" and sample.most_nodes >= least_nodes]
    seen_ms = _interval_ms(runs)
    if seen_ms is None or not target or (speculates and not draft):
        return None
    parts = dict.fromkeys(PARTS, 0.0)
    parts |= {part: _usual(target, key) for key, part in _TARGET_PARTS.items()}
    label = Variant(runs[0].mode, runs[0].shape).label
    if speculates and runs[0].concurrency > _IN_HALVES * float(np.mean([sample.requests for sample in target])):
        parts = {part: 2 * parts_ms if part in _HALVES_WORK else 0.0 for part, parts_ms in parts.items()}
        label += " in halves"
    elif speculates:
        parts |= {part: _usual(draft, key) for key, part in _DRAFT_PARTS.items()}
        seen_ms = _usual(target, "wait") + sum(parts[part] for part in _STEP)
    parts[RPC] = max(0.0, seen_ms - sum(parts.values()))
    return RoundProfile(label, runs[0].concurrency, len(target), seen_ms, parts)


def profile_table(profiles: Sequence[RoundProfile]) -> str:
    """Milliseconds, in Markdown."""
    head = ["", "concurrency", "round", *PARTS, "overhead"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for profile in profiles:
        cells = [profile.label, str(profile.concurrency), f"{profile.interval_ms:.2f}"]
        cells += [f"{profile.parts_ms[part]:.2f}" for part in PARTS]
        lines.append("| " + " | ".join([*cells, f"{profile.overhead:.0%}"]) + " |")
    return "\n".join(lines)


def _usual(samples: Sequence[SampledRound], key: str) -> float:
    return float(np.median([sample.timings_ms.get(key, 0.0) for sample in samples]))


def _interval_ms(runs: Sequence[Run]) -> float | None:
    """Between two rounds of a request: its first token comes before its first round."""
    completions = [completion for run in runs for completion in run.completions if completion.stats.rounds]
    num_rounds = sum(completion.stats.rounds for completion in completions)
    seconds = sum(completion.last_token_s - completion.first_token_s for completion in completions)
    return seconds / num_rounds * 1e3 if num_rounds and seconds > 0 else None
