"""The default model and its head, in models/ at the repository's root, and how far it pays to speculate with them."""

from __future__ import annotations

from pathlib import Path

from paceline.types import TreeShape

_ROOT = Path(__file__).resolve().parent.parent

DEFAULT_MODEL_PATH = str(_ROOT / "models" / "smollm2-135m")
DEFAULT_HEAD_PATH = str(_ROOT / "models" / "smollm2-135m-eagle3")

# On two CPU cores without AVX-512 five rows are what a verify step takes almost for free (docs/performance.md).
DEFAULT_TREE = TreeShape(num_steps=2, eagle_topk=3, num_draft_tokens=5)
