"""The simulation of load agrees with queueing theory, and finds bottlenecks that were planted."""

from __future__ import annotations

import pytest

pytest.importorskip("simpy")

from benchmarks.scale_queues import Load, Station, Visit, erlang_c, simulate, solve

HERE = [Visit("here", 0.1)]


@pytest.mark.parametrize(("servers", "busy"), [(1, 0.8), (3, 0.8), (8, 0.9)])
def test_an_open_queue_waits_as_long_as_erlang_says(servers: int, busy: float) -> None:
    load = Load(arrivals=servers * busy / 0.1)
    found = simulate({"here": Station(servers)}, HERE, load, seconds=4000 / servers, warm=50, seed=3)
    waits = erlang_c(servers, busy) * 0.1 / (servers * (1 - busy))
    assert found.seconds == pytest.approx(0.1 + waits, rel=0.07)
    assert found.busy["here"] == pytest.approx(busy, rel=0.03)
    assert found.per_second == pytest.approx(load.arrivals, rel=0.03)


def test_erlangs_formula_is_the_textbooks() -> None:
    assert erlang_c(1, 0.3) == pytest.approx(0.3)
    assert erlang_c(2, 0.5) == pytest.approx(1 / 3)
    assert erlang_c(10, 1.0) == 1.0


def test_a_closed_network_is_as_fast_as_its_bottleneck_and_a_seed_repeats_it() -> None:
    stations = {"slow": Station(), "fast": Station(2), "disk": Station(0)}
    visits = [Visit("slow", 0.02), Visit("fast", 0.03), Visit("disk", 0.1)]
    load = Load(threads=30)
    found = simulate(stations, visits, load, seconds=100, warm=5)
    assert found.per_second == pytest.approx(50, rel=0.02)
    assert found.limit == "slow" and found.busy["slow"] > 0.98
    assert found.busy["fast"] == pytest.approx(0.75, rel=0.03)
    assert found == simulate(stations, visits, load, seconds=100, warm=5)
    assert found != simulate(stations, visits, load, seconds=100, warm=5, seed=1)
    # Little's law.
    assert found.seconds * found.per_second == pytest.approx(30, rel=0.02)


@pytest.mark.parametrize("call", [0.0002, 0.00001])
@pytest.mark.parametrize("processes", [1, 8, 32])
def test_mean_values_agree_with_the_simulation(processes: int, call: float) -> None:
    stations = {
        "client": Station(of_process=True),
        "servers": Station(8, copies=4),
        "oracle": Station(),
        "disk": Station(0),
    }
    half = [
        Visit("oracle", call, shared=True),
        *(Visit(name, 0.0005) for name in ("client", "servers")),
        Visit("disk", 0.001),
    ]
    load = Load(processes, 4)
    simulated = simulate(stations, [*half, *half], load, seconds=0.5, warm=0.1)
    solved = solve(stations, [*half, *half], load)
    assert solved.per_second == pytest.approx(simulated.per_second, rel=0.1)
    assert solved.carried["oracle"] == pytest.approx(simulated.carried["oracle"], rel=0.15)


def test_threads_that_hold_a_lock_while_they_compute_are_one_core_together() -> None:
    stations = {"lock": Station(of_process=True), "cores": Station(4)}
    visits = [Visit("cores", 0.01, holding="lock")]
    one = simulate(stations, visits, Load(1, 8), seconds=20)
    four = simulate(stations, visits, Load(4, 8), seconds=20)
    assert one.per_second == pytest.approx(100, rel=0.05)
    assert four.per_second == pytest.approx(400, rel=0.05)


def test_the_threads_of_a_process_share_calls_as_the_oracle_becomes_slow() -> None:
    stations = {"oracle": Station()}
    found = simulate(
        stations, [Visit("oracle", 0.001, shared=True)], Load(2, 16), seconds=5, warm=0.5
    )
    # As measured by `make bench ARGS=oracle`: half of the threads wait for the next call.
    assert found.carried["oracle"] == pytest.approx(8, rel=0.1)
    assert found.per_second == pytest.approx(8000, rel=0.1)
