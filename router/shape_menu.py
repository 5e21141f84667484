"""ShapeMenu: the trees that a policy may choose among, as columns for arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from paceline.types import TreeShape

OFF = -1  # in place of a shape's index: plain decoding
_SIZES = (2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48)  # nodes to cut a growth to


class ShapeMenu:
    """Growths, and for each the sizes to which its trees may be cut.

    A growth is what a draft does for all sessions alike: num_steps levels of a beam of eagle_topk. Its cost hardly
    depends on how many of the nodes are kept, so that requests of one batch share a growth and differ in size. Sessions
    of different growths run one after the other, which is why a target has one growth at a time.
    """

    def __init__(self, growths: Iterable[TreeShape]) -> None:
        """growths: each with its largest size; at least one."""
        self.growths = tuple(dict.fromkeys(growths))
        cuts = {cut: number for number, growth in reversed([*enumerate(self.growths)]) for cut in _cuts(growth)}
        self.shapes: Sequence[TreeShape] = tuple(cuts)
        self.growth_index = np.array(list(cuts.values()))  # of each shape: the first growth that it is cut from
        self.index = {shape: index for index, shape in enumerate(self.shapes)}
        self.num_nodes = np.array([shape.num_draft_tokens for shape in self.shapes])
        self.depth = np.array([min(shape.num_steps, shape.num_draft_tokens - 1) for shape in self.shapes])
        self.max_depth = int(self.depth.max())
        self.of_growth = tuple(np.array([self.index[cut] for cut in _cuts(growth)]) for growth in self.growths)

    def growth_of(self, index: int) -> TreeShape:
        """The growth that a shape is cut from."""
        return self.growths[int(self.growth_index[index])]

    def shape(self, index: int) -> TreeShape | None:
        return None if index == OFF else self.shapes[index]


def _cuts(growth: TreeShape) -> list[TreeShape]:
    """Ascending in nodes."""
    sizes = [size for size in _SIZES if size < growth.num_draft_tokens]
    return [TreeShape(growth.num_steps, growth.eagle_topk, size) for size in (*sizes, growth.num_draft_tokens)]
