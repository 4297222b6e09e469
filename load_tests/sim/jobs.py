"""What one process simulates."""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import EngineConfig
from engine.contract import Tier
from load_tests.sim.machine import Costs
from load_tests.sim.policies import POLICIES, config_for
from load_tests.sim.simulate import Run, Simulation, capacity_requests_per_s
from load_tests.sim.trace import make_trace


@dataclass(frozen=True, slots=True)
class Job:
    """One policy on one trace; of one tier alone if so asked."""

    policy: str
    load: float
    seed: int
    seconds: float
    blocks: int
    tier: Tier | None = None


def run_job(job: Job) -> Run:
    """Simulate it; in a process of its own, where there are several."""
    costs = Costs()
    policy = POLICIES[job.policy]
    config = config_for(policy, EngineConfig(num_blocks=job.blocks))
    rate = job.load * capacity_requests_per_s(costs)
    trace = make_trace(job.seed, requests_per_s=rate, duration_s=job.seconds)
    if job.tier is not None:
        trace = [arrival for arrival in trace if arrival.tier is job.tier]
    return Simulation(policy, config, costs, job.seed).run(trace)
