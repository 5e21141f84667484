"""The model card of a trained head."""

from __future__ import annotations

from typing import Any

from training.checkpoint import Checkpoint

_LOADING = """\
## Loading it

The names and the config are EAGLE-3's published ones: `fc`, `midlayer.*`, `norm`, `lm_head`, `d2t` (differences) and
`t2d`; the embedding is the target's. Paceline takes the folder as `--speculative-draft-model-path`, SGLang as
`--speculative-draft-model-path` with `--speculative-algorithm EAGLE3`, vLLM in `--speculative-config` with the method
`eagle3`.
"""


_FIGURES = "## Accepted length\n\n"


def model_card(checkpoint: Checkpoint, *, target: str, data: dict[str, Any]) -> str:
    """Markdown, without figures yet. target: its folder's name; data: a corpus report."""
    config, settings = checkpoint.config, checkpoint.settings
    source = settings["source"]
    parts = [
        f"# An EAGLE-3 head for {target}\n",
        f"Trained by `paceline train-head` for exactly these weights of {target}; for others it guesses worse.\n",
        "## Data\n",
        f"{data['conversations']:,} conversations, {data['tokens']:,} tokens ({_SOURCES[source]}). A question has "
        f"{data['question_length']['mean']:.0f} tokens on average, an answer {data['answer_length']['mean']:.0f}.\n",
        "## Training\n",
        f"{checkpoint.step:,} steps over {checkpoint.num_tokens:,} tokens, unrolled over {settings['depths']} depths; "
        f"learning rate {settings['learning_rate']:g} at its peak. The head has {_count(checkpoint):,} parameters: "
        f"hidden size {config.hidden_size}, MLP {config.intermediate_size}, draft vocabulary "
        f"{config.draft_vocab_size:,} of {config.vocab_size:,} tokens. The flags were\n",
        "```\n" + "\n".join(f"{name} = {value}" for name, value in sorted(settings.items())) + "\n```\n",
        _LOADING,
    ]
    return with_figures("\n".join(parts), "Not measured yet.\n")


def with_figures(card: str, figures: str) -> str:
    """The card with these figures at its end, in place of those that it has."""
    return f"{card.partition(_FIGURES)[0].rstrip()}\n\n{_FIGURES}{figures}"


_SOURCES = {
    "own questions": "the target's own questions and answers",
    "prompts": "the target's answers to given prompts",
    "conversations": "given conversations",
}


def _count(checkpoint: Checkpoint) -> int:
    return sum(value.numel() for value in checkpoint.weights.values())
