"""RopeConfig: the rotary frequencies of a model, and how they are stretched past its first training length."""

from __future__ import annotations

from dataclasses import dataclass

from engine.config_fields import Fields

SUPPORTED_SCALING = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """scaling: "default" (none), "linear" (positions / factor), "llama3" (Llama 3.1's bands by wavelength), or
    "divisors" (each frequency has its own divisor, as GGUF's rope_freqs tensor gives them)."""

    theta: float
    scaling: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_max_position: int = 0
    divisors: tuple[float, ...] = ()  # head_dim / 2 values, for "divisors" alone


def rope_from_fields(fields: Fields) -> RopeConfig:
    """Reads rope_theta and rope_scaling, or the newer rope_parameters. Raises ModelLoadError for other scalings."""
    scaling = fields.child("rope_parameters") if fields.has("rope_parameters") else fields.child("rope_scaling")
    theta = scaling.real("rope_theta") if scaling.has("rope_theta") else fields.real("rope_theta", 10000.0)
    kind = scaling.text("rope_type", scaling.values.get("type") or "default")
    for owner in (fields, scaling):
        owner.require("partial_rotary_factor", 1.0)
    if kind == "default":
        return RopeConfig(theta)
    if kind == "linear":
        return RopeConfig(theta, kind, factor=scaling.real("factor"))
    if kind == "llama3":
        return RopeConfig(
            theta,
            kind,
            factor=scaling.real("factor"),
            low_freq_factor=scaling.real("low_freq_factor"),
            high_freq_factor=scaling.real("high_freq_factor"),
            original_max_position=scaling.whole("original_max_position_embeddings"),
        )
    raise scaling.error("rope_type", kind, f"one of {', '.join(SUPPORTED_SCALING)}")
