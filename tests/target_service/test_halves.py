"""Whether a round's trees are verified at once or in halves: both are tried where halves could pay."""

from target_service.deadline import StepTimes
from target_service.halves import Halves, SteppedTrees

TIMES = StepTimes([1, 32, 64, 128, 256], [4.8, 5.2, 5.5, 6.5, 8.8])


class Target:
    """Runs as it is told to, for ``seconds`` of its own clock."""

    def __init__(self, halves: Halves) -> None:
        self.halves = halves
        self.now_s = 0.0
        self.rounds = {False: 0.0, True: 0.0}
        self.changes = 0

    def run(
        self, seconds: float, *, trees: int, nodes: int, whole_ms: float, half_ms: float, prompt_tokens: int = 0
    ) -> None:
        """whole_ms, half_ms: of the loop's time a step, waits included, but for what its prompt_tokens add."""
        self.rounds, self.changes = {False: 0.0, True: 0.0}, 0
        stop_s = self.now_s + seconds
        while self.now_s < stop_s:
            is_split = self.halves.is_split
            num_trees = max(1, trees // 2) if is_split else trees
            spent_ms = half_ms if is_split else whole_ms
            self.rounds[is_split] += 0.5 if is_split else 1.0
            rows = num_trees * nodes
            device_ms = TIMES.at_warm_up(rows + prompt_tokens)
            spent_ms += device_ms - TIMES.at_warm_up(rows)
            self.now_s += spent_ms / 1e3
            self.halves.observe(
                SteppedTrees(
                    requests=trees,
                    rows=rows + prompt_tokens,
                    prompt_tokens=prompt_tokens,
                    trees=num_trees,
                    nodes=rows,
                    device_ms=device_ms,
                    spent_ms=spent_ms,
                    over_s=self.now_s,
                )
            )
            self.changes += self.halves.is_split != is_split


def test_the_faster_way_is_kept_and_the_other_is_looked_at_ever_less():
    target = Target(Halves(TIMES, enabled=True))
    target.run(60.0, trees=32, nodes=4, whole_ms=14.0, half_ms=6.0)
    assert target.halves.is_split
    assert target.rounds[True] > 20 * target.rounds[False]


def test_halves_that_a_shared_gpu_makes_slower_are_given_up():
    target = Target(Halves(TIMES, enabled=True))
    target.run(60.0, trees=32, nodes=4, whole_ms=14.0, half_ms=8.0)
    assert not target.halves.is_split
    assert target.rounds[False] > 20 * target.rounds[True]
    assert target.changes <= 14


def test_halves_are_not_tried_where_the_weights_read_twice_take_too_long():
    target = Target(Halves(TIMES, enabled=True))
    target.run(10.0, trees=8, nodes=4, whole_ms=9.5, half_ms=4.0)
    assert target.rounds[True] == 0


def test_another_load_is_judged_for_itself():
    target = Target(Halves(TIMES, enabled=True))
    target.run(5.0, trees=32, nodes=4, whole_ms=14.0, half_ms=6.0)
    target.run(5.0, trees=2, nodes=4, whole_ms=7.0, half_ms=5.0)
    assert not target.halves.is_split
    target.run(5.0, trees=64, nodes=4, whole_ms=24.0, half_ms=13.0)
    assert target.rounds[False] > 2 * target.rounds[True]
    target.run(5.0, trees=32, nodes=4, whole_ms=14.0, half_ms=6.0)
    assert target.halves.is_split


def test_a_way_that_becomes_slower_is_left():
    target = Target(Halves(TIMES, enabled=True))
    target.run(5.0, trees=32, nodes=4, whole_ms=14.0, half_ms=6.0)
    assert target.halves.is_split
    target.run(5.0, trees=32, nodes=4, whole_ms=14.0, half_ms=9.0)
    assert target.rounds[False] > 4 * target.rounds[True]


def test_prompts_that_come_where_a_load_begins_do_not_make_the_way_that_runs_then_look_slow():
    target = Target(Halves(TIMES, enabled=True))
    for _ in range(20):  # whole rounds, and 100 prompt tokens in each
        target.run(0.01, trees=32, nodes=4, whole_ms=11.5, half_ms=6.0, prompt_tokens=100)
    assert target.halves.is_split, "the other way is tried"
    target.run(3.0, trees=32, nodes=4, whole_ms=11.5, half_ms=6.0)
    assert target.rounds[False] > 2 * target.rounds[True]


def test_a_way_that_looked_slow_for_a_moment_is_soon_seen_for_what_it_is():
    target = Target(Halves(TIMES, enabled=True))
    for _ in range(20):  # drafts that have the first prompts to read
        target.run(0.01, trees=32, nodes=4, whole_ms=15.0, half_ms=6.5)
    assert target.halves.is_split, "the other way is tried"
    target.run(2.0, trees=32, nodes=4, whole_ms=11.5, half_ms=6.5)
    assert target.rounds[False] > target.rounds[True]


def test_requests_that_each_end_in_their_first_round_are_a_load_as_well():
    halves = Halves(TIMES, enabled=True)
    for number in range(64):
        is_round = number % 2 == 1  # a prompt, then its only tree, which ends the request
        halves.observe(
            SteppedTrees(
                requests=0,
                rows=4,
                prompt_tokens=0 if is_round else 4,
                trees=int(is_round),
                nodes=4 if is_round else 0,
                device_ms=4.8,
                spent_ms=7.0,
                over_s=0.007 * number,
            )
        )
    assert not halves.is_split


def test_nothing_is_split_where_that_is_off():
    target = Target(Halves(TIMES, enabled=False))
    target.run(5.0, trees=32, nodes=4, whole_ms=14.0, half_ms=6.0)
    assert target.rounds[True] == 0
