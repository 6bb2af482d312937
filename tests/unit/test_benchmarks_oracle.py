"""What the oracle's benchmark makes of its clients' figures."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest

from benchmarks import oracle
from benchmarks.oracle import OracleError, Point


def said(**changes: Any) -> dict[str, Any]:
    """What a client process tells that drew ten timestamps in two seconds."""
    told = {"drawn": 10, "least": 1, "most": 10, "rises": True, "ms": [1.0, 3.0]}
    return {**told, "began": 5.0, "ended": 7.0, "calls": 5, "cpu": 0.02, **changes}


def test_processes_count_together_from_the_first_begin_to_the_last_end() -> None:
    other = said(drawn=30, least=11, most=40, ms=[2.0], began=6.0, ended=9.0, calls=15, cpu=0.06)
    point = Point.of(4, 1, [said(), other], 0.04)
    assert (point.processes, point.threads) == (2, 4)
    assert point.per_second == 10.0
    assert point.a_call == 2.0
    assert point.latency.p50 == 2.0 and point.latency.count == 3
    assert point.calls_per_second == 5.0
    assert point.oracle_us == pytest.approx(2000.0)
    assert point.oracle_busy == pytest.approx(0.01)
    assert point.client_us == pytest.approx(4000.0)


@pytest.mark.parametrize("wrong", [{"least": 2}, {"rises": False}])
def test_timestamps_that_come_twice_or_do_not_rise_are_an_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(OracleError):
        Point.of(1, 1, [said(**wrong)], 0.0)


def test_an_oracle_that_opens_no_session_for_locks_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    locks = MagicMock(sessions=["one"])
    monkeypatch.setattr(oracle, "LockServiceClient", lambda _: locks)
    monkeypatch.setattr(oracle, "_DEADLINE", 0.0)
    with pytest.raises(OracleError, match="1 of 2 oracles have opened a session"):
        oracle.measure_locks([MagicMock(), MagicMock()], 1.0, 1)
    locks.close.assert_called_once()
