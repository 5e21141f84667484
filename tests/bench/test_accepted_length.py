"""The services against the same engine in process: accepted length and tokens."""

from __future__ import annotations

import json

import pytest

from bench.__main__ import main

WORK = ["--dtype", "float32", "--num-prompts", "10", "--max-tokens", "64", "--compare", "speculative"]
SHAPES = {"chain": ("5", "1", "6"), "tree": ("5", "4", "16")}
PATIENT = "--speculative-tree-deadline-ms 10000"  # no late round, however busy the machine


def measured(out, *flags):
    assert main([*WORK, *flags, "--json", str(out)]) == 0
    (run,) = json.loads(out.read_text())["runs"]
    return run


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_accepted_length_through_the_services_is_that_of_the_reference(shape, tmp_path):
    flags = zip(("num-steps", "eagle-topk", "num-draft-tokens"), SHAPES[shape], strict=True)
    tree = [f"--speculative-{name}={value}" for name, value in flags]
    served = measured(tmp_path / "served.json", *tree, "--target-args", PATIENT)
    reference = measured(tmp_path / "reference.json", *tree, "--in-process")
    assert served["late_rounds"] == 0
    assert served["output_tokens"] == reference["output_tokens"]
    assert served["mean_accepted_length"] == pytest.approx(reference["mean_accepted_length"], rel=0.02)
