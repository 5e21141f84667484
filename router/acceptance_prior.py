"""How far trees of each shape are accepted, before any was seen."""

from __future__ import annotations

import numpy as np

from paceline.step_table import Floats
from paceline.types import TreeShape

# Log-odds that one more level is accepted, by the logarithm of the nodes a level. From accepted lengths of the default
# pair over Spec-Bench, greedy: 2.32 at (3,1,4), 2.25 (2,3,5), 2.50 (5,1,6), 2.95 (5,4,8), 3.25 (5,4,16), 3.70 (7,8,32).
# Other heads differ by a shift, which is learnt at once.
_LOG_NODES = np.array([0.0, 0.34, 1.1, 1.49, 2.13])
_LOG_ODDS = np.array([0.54, 0.76, 1.01, 1.14, 1.22])
# By how much the levels of a tree differ, the first one first, for it has more nodes where the deeper ones have few; a
# chain's are alike. From the same rounds: 0.80, 0.77, 0.68, 0.62, 0.63 of those that came so far at (5,4,16).
_BY_LEVEL = np.array([0.45, 0.1, -0.33, -0.58, -0.48, -0.22, -0.22])
_LEVEL_WEIGHT = 0.75  # of a level in what the levels are on average, over the one before


def prior_log_odds(shape: TreeShape, max_depth: int) -> Floats:
    """[max_depth]: of accepting a draft at depth d + 1 where one at depth d was; -inf past the tree's depth."""
    depth = min(shape.num_steps, shape.num_draft_tokens - 1)
    nodes_a_level = 1.0 if shape.eagle_topk == 1 else max(1.0, (shape.num_draft_tokens - 1) / depth)
    levels = np.full(depth, float(np.interp(np.log(nodes_a_level), _LOG_NODES, _LOG_ODDS)))
    if nodes_a_level > 1.0:
        by_level = np.interp(np.arange(depth), np.arange(len(_BY_LEVEL)), _BY_LEVEL)
        levels += by_level - np.average(by_level, weights=_LEVEL_WEIGHT ** np.arange(depth))
    odds = np.full(max_depth, -np.inf)
    odds[:depth] = levels[:max_depth]
    return odds
