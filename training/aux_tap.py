"""AuxTap: takes a fuser's place in the target, and hands out what a head's fc is trained on."""

from __future__ import annotations

from torch import Tensor

from engine.head_config import NUM_AUX


class AuxTap:
    """The inputs of three target layers side by side, as they are: a step's features are then [rows, 3 H]."""

    feature_id = ""
    weight_bytes = 0

    def __init__(self, layers: tuple[int, int, int], width: int) -> None:
        """layers: of whose input a third is taken each; width: H."""
        self.size = NUM_AUX * width
        self._width = width
        self._layers = layers

    def start(self, residual: Tensor) -> Tensor:
        return residual.new_empty(residual.shape[0], self.size)

    def parts(self, aux: Tensor, layer: int) -> list[Tensor]:
        places = [i for i in range(NUM_AUX) if self._layers[i] == layer]
        return [aux[:, i * self._width : (i + 1) * self._width] for i in places]

    def fuse(self, aux: Tensor) -> Tensor:
        return aux
