"""What a step's report says of the trees in it."""

from __future__ import annotations

from router.step_report import StepReport


def test_nodes_of_trees_are_the_rows_of_neither_prompts_nor_plain_requests() -> None:
    report = StepReport(
        decoding=6,
        rows=100 + 2 + 12,
        prefill_tokens=100,
        requests=5,
        drafted=3,
        context_tokens=1000,
        step_ms=9.0,
        wait_ms=2.0,
    )
    assert report.tree_nodes == 12
