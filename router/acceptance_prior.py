"""How far trees of each shape are accepted, before any was seen."""

from __future__ import annotations

import numpy as np

from paceline.step_table import Floats
from paceline.types import TreeShape

# Log-odds that one more level is accepted, by the logarithm of the nodes a level. The slope is from accepted lengths of
# the first default head over Spec-Bench, greedy: 1.97 at (5,1,6), 2.31 (5,4,8), 2.54 (5,4,16), 2.81 (7,8,32), 2.98
# (7,10,60); the level from today's: 2.50 at (5,1,6), 2.25 (2,3,5), 3.18 (5,4,16). Other heads differ by a shift, which
# is learnt at once.
_LOG_NODES = np.array([0.0, 0.34, 1.1, 1.49, 2.13])
_LOG_ODDS = np.array([0.5, 0.84, 1.04, 1.16, 1.25])


def prior_log_odds(shape: TreeShape, max_depth: int) -> Floats:
    """[max_depth]: of accepting a draft at depth d + 1 where one at depth d was; -inf past the tree's depth."""
    depth = min(shape.num_steps, shape.num_draft_tokens - 1)
    nodes_a_level = 1.0 if shape.eagle_topk == 1 else max(1.0, (shape.num_draft_tokens - 1) / depth)
    odds = np.full(max_depth, float(np.interp(np.log(nodes_a_level), _LOG_NODES, _LOG_ODDS)))
    odds[depth:] = -np.inf
    return odds
