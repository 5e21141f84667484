"""Configs of a model path and of a head path, from config.json or GGUF metadata."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from engine.config_fields import read_fields
from engine.gguf_config import model_config_from_gguf, with_rope_freqs
from engine.head_config import HeadConfig, load_head_config
from engine.model_config import ModelConfig, model_config_from_json
from engine.rope_config import RopeConfig
from engine.weights import GgufSource, find_model_files

__all__ = ["HeadConfig", "ModelConfig", "RopeConfig", "load_head_config", "load_model_config"]


def load_model_config(path: Path) -> ModelConfig:
    """The config of a model folder or a .gguf file.

    A folder's config.json comes first and a GGUF's metadata serves where there is none; a GGUF's tensor of
    rotary frequencies stands in either case. Raises ModelLoadError that names the field and its value.
    """
    files = find_model_files(path)
    generation = None if files.generation_config is None else read_fields(files.generation_config)
    if files.gguf is None:
        assert files.config is not None
        return model_config_from_json(read_fields(files.config), generation)
    with closing(GgufSource(files.gguf)) as source:
        if files.config is None:
            config = model_config_from_gguf(source)
        else:
            config = model_config_from_json(read_fields(files.config), generation)
        return replace(config, rope=with_rope_freqs(config.rope, source))
