"""python -m target_service.tp_worker: one rank beside rank 0. Receives plans, steps, says nothing but its errors.

Ends when rank 0 sends an empty plan, and at once when its standard input closes: that is rank 0's death.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.config import add_flags, build_parser, flag
from paceline.errors import PacelineError
from paceline.logs import set_up_logging
from paceline.threads import share_cores
from target_service.config import TargetConfig
from target_service.tp_workers import end_process, remove_meeting_place

_PROG = "target_service.tp_worker"
_ORPHANED = 1
_STDIN = 0
_log = logging.getLogger(_PROG)


@dataclass(frozen=True, slots=True)
class RankConfig:
    """Which rank this is, and where the ranks meet."""

    rank: int = flag(help="this process's rank, 1 or more")
    init_method: str = flag(help="torch.distributed's init method")


def main(argv: Sequence[str]) -> None:
    """Runs one rank until rank 0 ends."""
    try:
        parser = build_parser(TargetConfig, prog=_PROG)
        add_flags(parser, RankConfig)
        values = vars(parser.parse_args(list(argv)))
        rank = RankConfig(values.pop("rank"), values.pop("init_method"))
        config = TargetConfig(**values)
        set_up_logging(f"{_PROG}[{rank.rank}]", level=config.log_level)
        share_cores(config.threads_per_rank)
        watch = threading.Thread(target=_end_with_parent, args=(rank.init_method,), name="parent watch", daemon=True)
        watch.start()
        _follow(config, rank)
    except PacelineError as error:
        print(f"{_PROG}: {error}", file=sys.stderr)
        end_process(error.exit_code)
    except Exception:  # noqa: BLE001 - whatever ends a rank must end its process, and the interpreter's end may hang
        _log.exception("the rank ended")
        end_process(1)
    end_process(0)


def _follow(config: TargetConfig, rank: RankConfig) -> None:
    from engine.plan import StepPlan
    from target_service.loading import load_rank  # imports torch, which reads the environment then

    loaded = load_rank(config, rank.rank, rank.init_method)
    while len(packed := loaded.tp.broadcast_plan()):
        loaded.model.step(StepPlan.unpack(packed), loaded.cache)
    loaded.tp.close()


def _end_with_parent(init_method: str) -> None:
    while os.read(_STDIN, 1):  # not sys.stdin: its lock would be held when the interpreter ends
        pass
    remove_meeting_place(init_method)
    os._exit(_ORPHANED)


if __name__ == "__main__":
    main(sys.argv[1:])
