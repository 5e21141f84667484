"""The router's bench, with a real router before its target on a clock."""

from __future__ import annotations

import pytest

from bench.router_load import main


@pytest.mark.slow
def test_a_row_for_each_stream_interval(capsys):
    sizes = ["--streams", "3", "--requests", "6", "--max-tokens", "8", "--step-ms", "2"]
    main([*sizes, "--stream-intervals", "1,4"])
    *_, one, four = capsys.readouterr().out.strip().splitlines()
    assert one.startswith("| 1 | ") and four.startswith("| 4 | ")
