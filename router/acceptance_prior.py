"""How far trees of each shape are accepted, before any was seen."""

from __future__ import annotations

import numpy as np

from paceline.step_table import Floats
from paceline.types import TreeShape

# Log-odds that one more level is accepted, by the logarithm of the nodes a level. From accepted lengths of the default
# pair over 96 prompts of Spec-Bench, greedy: 1.66 at (1,1,2), 2.04 (2,1,3), 2.29 (3,1,4), 2.53 (5,1,6), 2.20 (2,3,4),
# 2.29 (2,3,5), 2.36 (5,4,4), 2.73 (5,4,6), 2.91 (5,4,8), 3.12 (5,4,12), 3.26 (5,4,16), 3.18 (7,8,12), 3.73 (7,8,32).
# Other heads and texts differ by a shift, which is learnt at once.
_LOG_NODES = np.array([0.0, 0.34, 0.45, 0.69, 1.1, 1.49, 2.13])
_LOG_ODDS = np.array([0.55, 0.73, 0.81, 0.91, 1.03, 1.18, 1.24])
# By how much the levels of a tree differ, the first one first, for it has more nodes where the deeper ones have few; a
# chain's are alike. Fitted to the same lengths, and to how many drafts were accepted of those that came so far, by
# level: 0.80, 0.78, 0.66, 0.62, 0.62 at (5,4,16).
_BY_LEVEL = np.array([0.73, -0.13, -0.34, -0.77, -0.59, -0.6, -0.5])
_LEVEL_WEIGHT = 0.75  # of a level in what the levels are on average, over the one before


def prior_log_odds(shape: TreeShape, max_depth: int) -> Floats:
    """[max_depth]: of accepting a draft at depth d + 1 where one at depth d was; -inf past the tree's depth."""
    depth = min(shape.num_steps, shape.num_draft_tokens - 1)
    nodes_a_level = 1.0 if shape.eagle_topk == 1 else max(1.0, (shape.num_draft_tokens - 1) / depth)
    levels = np.full(depth, float(np.interp(np.log(nodes_a_level), _LOG_NODES, _LOG_ODDS)))
    if shape.eagle_topk > 1:
        by_level = np.interp(np.arange(depth), np.arange(len(_BY_LEVEL)), _BY_LEVEL)
        levels += by_level - np.average(by_level, weights=_LEVEL_WEIGHT ** np.arange(depth))
    odds = np.full(max_depth, -np.inf)
    odds[:depth] = levels[:max_depth]
    return odds


def chance_of(odds: Floats) -> Floats:
    """Of log-odds."""
    chance: Floats = 1.0 / (1.0 + np.exp(-odds))
    return chance


def drafts_of(odds: Floats) -> Floats:
    """Accepted in a round, on average. odds: [..., levels], that one more level is accepted."""
    drafts: Floats = np.cumprod(chance_of(odds), axis=-1).sum(axis=-1)
    return drafts
