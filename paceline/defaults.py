"""Where the default model and its head lie: in models/ at the repository's root."""

from __future__ import annotations

from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent

DEFAULT_MODEL_PATH = str(_ROOT / "models" / "smollm2-135m")
DEFAULT_HEAD_PATH = str(_ROOT / "models" / "smollm2-135m-eagle3")
