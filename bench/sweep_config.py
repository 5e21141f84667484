"""The flags of ``paceline bench sweep``."""

from __future__ import annotations

from dataclasses import dataclass

from bench.load import Load, closed_loads, open_loads, phased_load
from bench.policies import ADAPTIVE, parse_policies
from bench.workload_flags import WorkloadFlags
from paceline.config import flag, require
from paceline.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SweepConfig(WorkloadFlags):
    """Measure policies side by side over loads, on one fleet and in one run.

    Raises ConfigError, or InvalidInputError for sampling values and tree shapes.
    """

    policies: str = flag("off;1,1,2;2,3,5;3,1,4;adaptive", help="off, adaptive, and trees by steps,topk,nodes")
    concurrency: tuple[str, ...] = flag(("1", "2", "4", "8", "16"), help="requests in flight, a load each")
    rates: tuple[str, ...] = flag((), help="Poisson arrivals a second, a load each")
    phases: str = flag("", help="one load more, seconds:in-flight;... in turn, like 8:1;4:8;8:1")
    seconds_per_point: float = flag(6.0, help="of each policy at each load, once its first requests have a token")
    ramp_seconds: float = flag(1.0, help="of them, at the start, that do not count; with --phases all do")
    warm_up_seconds: float = flag(10.0, help="of adaptive at the first load, before the first point, to learn")
    max_tokens: int = flag(64, help="new tokens of a request at most")
    repeat: int = flag(3, help="runs of each policy at each load, interleaved; medians count")
    max_other_work: float = flag(
        1.0, help="share of the machine that other processes may use during a point, which else is played again"
    )
    measured: tuple[str, ...] = flag((), help="files of --json to show and simulate together, instead of measuring")
    simulate: bool = flag(False, help="simulate each point from the times that the services measured of themselves")
    picture: str = flag("", help="file for a picture (SVG) of throughput and time per token by load")

    def __post_init__(self) -> None:
        WorkloadFlags.__post_init__(self)
        require(
            0 <= self.ramp_seconds < self.seconds_per_point, "ramp_seconds", self.ramp_seconds, "below those of a point"
        )
        require(self.warm_up_seconds >= 0, "warm_up_seconds", self.warm_up_seconds, "0 or more")
        require(
            len(set(self.measured)) == len(self.measured), "measured", ",".join(self.measured), "free of repetitions"
        )
        self.names()
        labels = [load.label for load in self.loads()]
        if not labels:
            raise ConfigError("no load is left: give --concurrency, --rates or --phases")
        twice = next((label for label in labels if labels.count(label) > 1), None)
        if twice is not None:
            raise ConfigError(f"--concurrency, --rates and --phases have the load {twice} twice: leave one out")

    def names(self) -> tuple[str, ...]:
        """Of the policies, in the order in which they run."""
        return parse_policies(self.policies)

    @property
    def is_adaptive(self) -> bool:
        return ADAPTIVE in self.names()

    def loads(self) -> list[Load]:
        """In the order in which they run."""
        seconds, ramp_s = self.seconds_per_point, self.ramp_seconds
        loads = closed_loads(self.concurrency, seconds, ramp_s=ramp_s) + open_loads(self.rates, seconds, ramp_s=ramp_s)
        return [*loads, phased_load(self.phases, is_open=False)] if self.phases else loads
