"""``python -m training``, which is ``paceline train-head``: a head for a target, from nothing."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from paceline.errors import PacelineError
from paceline.logs import set_up_logging
from training.config import PROG, parse
from training.pipeline import Pipeline
from training.rehearsal import clear, rehearsal_of

_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0, those of the typed errors (5 past --time-limit-s), 130 for Ctrl-C."""
    try:
        config = parse(sys.argv[1:] if argv is None else argv)
        set_up_logging("training", level="info")
        if config.run.rehearse:
            config = rehearsal_of(config)
            clear(config)
        Pipeline(config).run()
        return 0
    except PacelineError as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"{PROG}: interrupted; run the same command again to go on", file=sys.stderr)
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
