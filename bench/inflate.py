"""``python -m bench.inflate``, which is ``paceline inflate``: a small pair at a large model's shape and cost."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.inflated_configs import InflatedPair
from bench.inflated_folder import write_config, write_weights
from engine.config import load_head_config, load_model_config
from engine.weights.inflation import INFLATION_FILE, InflationFile, ModelDims
from paceline.config import build_parser, flag, parse_values, require_folder
from paceline.defaults import DEFAULT_HEAD_PATH, DEFAULT_MODEL_PATH
from paceline.errors import ConfigError, PacelineError

CUSTOM = "custom"
SHAPES = {
    "llama-8b": ModelDims(4096, 32, 32, 8, 128, 14336),
    "llama-32b": ModelDims(5120, 64, 40, 8, 128, 27648),
    "llama-70b": ModelDims(8192, 80, 64, 8, 128, 28672),
}
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True, slots=True)
class InflateConfig:
    """Write a target and its head that compute what a small pair does, at a large model's shape.

    OUT gets the folders target and head. The sizes override those of --shape. Raises ConfigError.
    """

    out: str
    shape: str = flag("llama-8b", help="sizes to inflate to", choices=(*SHAPES, CUSTOM))
    layers: int | None = flag(None, help="layers of the target; unset: the shape's")
    hidden_size: int | None = flag(None, help="hidden size; unset: the shape's")
    num_heads: int | None = flag(None, help="query heads; unset: the shape's")
    num_kv_heads: int | None = flag(None, help="KV heads; unset: the shape's")
    head_dim: int | None = flag(None, help="values of a head; unset: the shape's")
    intermediate_size: int | None = flag(None, help="values of the MLP; unset: the shape's")
    model_path: str = flag(DEFAULT_MODEL_PATH, help="folder of the small target, or its GGUF file")
    speculative_draft_model_path: str = flag(DEFAULT_HEAD_PATH, help="folder of the small head; empty: none")
    lazy: bool = flag(False, help="write no weights: whoever loads the folder computes them, on its own device")
    dtype: str = flag("bfloat16", help="dtype of the written weights", choices=tuple(_DTYPES))
    seed: int = flag(0, help="seed of the values that do not matter")

    def dims(self) -> ModelDims:
        sizes = {
            "num_layers": self.layers,
            "hidden_size": self.hidden_size,
            "num_heads": self.num_heads,
            "num_kv_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate_size,
        }
        given = {name: value for name, value in sizes.items() if value is not None}
        if self.shape != CUSTOM:
            return dataclasses.replace(SHAPES[self.shape], **given)
        missing = [field.name for field in dataclasses.fields(ModelDims) if field.name not in given]
        if missing:
            raise ConfigError(f"--shape is {CUSTOM}, so all sizes must be given; missing: {', '.join(missing)}")
        return ModelDims(**given)


def main(argv: Sequence[str]) -> int:
    """Exit codes: 0, those of the typed errors, 130 for Ctrl-C."""
    try:
        config = _parse(argv)
        inflate(config)
        return 0
    except PacelineError as error:
        print(f"paceline inflate: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("paceline inflate: interrupted", file=sys.stderr)
        return 130


def inflate(config: InflateConfig) -> None:
    """Raises ConfigError or ModelLoadError."""
    require_folder(config.out, "OUT")
    small, head = Path(config.model_path).resolve(), config.speculative_draft_model_path
    head_config = load_head_config(Path(head)) if head else None
    pair = InflatedPair.of(load_model_config(small), head_config, config.dims())
    out = Path(config.out)
    _write(out / "target", pair.target_config, InflationFile(pair.target, small, config.seed), config=config)
    if pair.head is not None and pair.head_config is not None:
        file = InflationFile(pair.head, Path(head).resolve(), config.seed)
        _write(out / "head", pair.head_config, file, config=config)


def _write(folder: Path, model_config: dict, file: InflationFile, *, config: InflateConfig) -> None:
    """The folder is made anew; one that no inflation made is refused."""
    if folder.exists():
        if not (folder / INFLATION_FILE).is_file():
            raise ConfigError(f"{folder} exists and has no {INFLATION_FILE}: it was not made here; name another OUT")
        shutil.rmtree(folder)
    write_config(folder, model_config | {"torch_dtype": config.dtype}, small=file.weights)
    file.write(folder)
    if not config.lazy:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        write_weights(folder, file, dtype=_DTYPES[config.dtype], device=device)
    print(f"{folder}: {'computed on load' if config.lazy else 'written'} from {file.weights}")


def _parse(argv: Sequence[str]) -> InflateConfig:
    parser = build_parser(InflateConfig, prog="paceline inflate")
    parser.add_argument("out", metavar="OUT", help="folder to write target and head into")
    return InflateConfig(**parse_values(parser, argv))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
