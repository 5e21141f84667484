"""The sizes that the attention kernels are built with. ``python -m bench.gpu_attention`` times others."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernels.unit_rule import UnitRule

_USUAL_HEAD_BYTES = 256  # 128 values of 16 bits


@dataclass(frozen=True, slots=True)
class TileTuning:
    """One variant of the kernel. A tile holds rows of one request times the query heads of one KV head."""

    lanes: int  # query vectors of a tile, at most
    block_kv: int  # positions of one step of the loop, for heads of up to 256 bytes; a power of two
    num_warps: int
    num_stages: int
    fused_combine: bool  # the last program of a split tile combines it; else a second kernel does
    max_ctas_per_sm: int  # bounds the grid: past it, programs loop over units

    def tile_rows(self, group: int) -> int:
        """group: query heads of one KV head."""
        return max(1, self.lanes // group)

    def block_for(self, head_dim: int, itemsize: int) -> int:
        """block_kv, less where heads are larger: the blocks of all stages share an SM's memory."""
        fitting = self.block_kv * _USUAL_HEAD_BYTES // (next_power_of_2(head_dim) * itemsize)
        return max(16, min(self.block_kv, fitting))


@dataclass(frozen=True, slots=True)
class AttentionTuning:
    """narrow is for decode rows and small trees, wide for large trees and chunks."""

    narrow: TileTuning = field(default=TileTuning(16, 64, 4, 3, fused_combine=True, max_ctas_per_sm=64))
    wide: TileTuning = field(default=TileTuning(64, 32, 4, 3, fused_combine=False, max_ctas_per_sm=8))
    wide_gain: float = 1.5  # wide where narrow tiles would read more than this times the KV
    split_ctas_per_sm: int = 2  # programs that the splits aim at
    min_split_len: int = 256  # positions: a shorter split costs more than it hides
    overlaps: bool = True  # start while the kernel before ends, where the device can
    invariant_split_len: int = 1024  # positions of every split of a batch_invariant batch

    def tiles(self, group: int) -> dict[int, TileTuning]:
        """By rows a tile, ascending."""
        return {tile.tile_rows(group): tile for tile in (self.narrow, self.wide)}

    def unit_rule(self, group: int, target_units: int) -> UnitRule:
        """target_units: units at once that fill the device."""
        return UnitRule(
            rows=tuple(self.tiles(group)),
            target_units=target_units,
            wide_gain=self.wide_gain,
            min_split_len=self.min_split_len,
            invariant_split_len=self.invariant_split_len,
        )


def next_power_of_2(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()
