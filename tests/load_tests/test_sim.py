"""Traces, policies and reports of the scheduler's simulation."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.contract import Tier
from load_tests.measure import percentile
from load_tests.sim import __main__ as program
from load_tests.sim.machine import Costs
from load_tests.sim.policies import POLICIES, Fcfs, config_for
from load_tests.sim.simulate import Simulation, capacity_requests_per_s
from load_tests.sim.trace import make_trace


def test_a_seed_makes_one_trace() -> None:
    trace = make_trace(3, requests_per_s=10.0, duration_s=60.0)
    assert trace == make_trace(3, requests_per_s=10.0, duration_s=60.0)
    assert trace != make_trace(4, requests_per_s=10.0, duration_s=60.0)
    assert len(trace) == pytest.approx(600, rel=0.2)
    assert {arrival.tier for arrival in trace} == set(Tier)
    assert [a.at_s for a in trace] == sorted(a.at_s for a in trace)
    first = sum(arrival.tenant == "t0" for arrival in trace)
    assert first == pytest.approx(len(trace) / 2, rel=0.3)


@pytest.mark.parametrize("policy", list(POLICIES))
def test_each_policy_answers_all_that_it_took(policy: str) -> None:
    trace = make_trace(1, requests_per_s=4 * capacity_requests_per_s(Costs()), duration_s=4.0)
    config = EngineConfig(num_blocks=512, check_invariants=True)
    config = config_for(POLICIES[policy], config)
    run = Simulation(POLICIES[policy], config, Costs(), 1).run(trace)
    assert len(run.outcomes) == len(trace)
    for outcome in run.outcomes:
        refused = outcome.refused_retry_ms is not None
        assert math.isnan(outcome.ttft_s) == math.isnan(outcome.start_wait_s) == refused
    assert run.goodput > 0


def test_the_policies_differ_as_their_names_say() -> None:
    trace = make_trace(2, requests_per_s=4 * capacity_requests_per_s(Costs()), duration_s=15.0)
    # Nobody is refused, so that all have the same requests.
    config = config_for(Fcfs, EngineConfig(num_blocks=512))
    started: dict[str, list[int]] = {}
    for name, policy in POLICIES.items():
        outcomes = Simulation(policy, config, Costs(), 1).run(trace).outcomes
        order = sorted(
            (round(o.arrival.at_s + o.start_wait_s, 6), i)
            for i, o in enumerate(outcomes)
            if not math.isnan(o.start_wait_s)
        )
        started[name] = [i for _, i in order]
    assert started["FCFS"] == sorted(started["FCFS"])
    assert started["longest prefix first"] != started["FCFS"]
    last = [trace[i].tier for i in started["priority, no ageing"][-10:]]
    assert set(last) == {Tier.BATCH}


def test_the_program_writes_table_csv_and_plots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--seeds", "1", "--seconds", "3", "--loads", "0.5", "2"]
    assert program.main([*arguments, "--output", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    lines = list(csv.DictReader((tmp_path / "policies.csv").read_text().splitlines()))
    # One line more for the VIPs alone.
    assert len(lines) == 2 * len(POLICIES) * len(Tier) + 1
    assert {line["policy"] for line in lines} == {*POLICIES, "vip alone"}
    assert all(line["policy"] in printed for line in lines)
    for name in ("ttft", "vip_ttft", "goodput"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_overload_leaves_vips_and_goodput_alone() -> None:
    costs = Costs()
    config = EngineConfig(num_blocks=1024)
    rate = 4 * capacity_requests_per_s(costs)
    alone: list[float] = []
    loaded: list[float] = []
    waits: list[float] = []
    goodputs: list[float] = []
    traces = [make_trace(seed, requests_per_s=rate, duration_s=45.0) for seed in range(3)]
    for seed, trace in enumerate(traces):
        run = Simulation(POLICIES["Repartee"], config, costs, seed).run(trace)
        goodputs.append(run.goodput)
        taken = [o for o in run.outcomes if o.refused_retry_ms is None]
        loaded += [o.ttft_s for o in taken if o.arrival.tier is Tier.VIP]
        waits += [o.start_wait_s for o in taken if o.arrival.tier is Tier.STANDARD]
        vips = [arrival for arrival in trace if arrival.tier is Tier.VIP]
        outcomes = Simulation(POLICIES["Repartee"], config, costs, seed).run(vips).outcomes
        alone += [o.ttft_s for o in outcomes]
    assert len(loaded) == len(alone) > 150
    assert percentile(loaded, 0.99) <= 1.2 * percentile(alone, 0.99)
    assert max(waits) <= config.ageing_ms / 1000
    fcfs = Simulation(Fcfs, config_for(Fcfs, config), costs, 0).run(traces[0])
    assert goodputs[0] >= 0.97 * fcfs.goodput
