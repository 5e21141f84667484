"""Where the embedded default model and its draft head lie in this checkout."""

from __future__ import annotations

from pathlib import Path

_MODELS = Path(__file__).resolve().parent.parent / "models"
DEFAULT_MODEL_PATH = _MODELS / "smollm2-135m"
DEFAULT_HEAD_PATH = _MODELS / "smollm2-135m-eagle3"
