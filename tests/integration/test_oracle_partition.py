"""An oracle whose network is cut: it hands out nothing that another one hands out as well."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from namespaces import Namespace, Network, require_namespaces, token
from oracle_drawing import Drawing
from oracle_schedules import broken_promises

from benchmarks.servers import OracleProcess, emulator

WaitUntil = Callable[..., Any]

__all__ = ["token"]

LEASE = 2.0
STORE = "bigtable://project/partition"


@pytest.mark.long
def test_a_leader_cut_off_from_the_store_and_not_from_clients_repeats_nothing_and_never_goes_down(
    stack: ExitStack, token: None, wait_until: WaitUntil
) -> None:
    require_namespaces()
    # Stores are on one network, clients on the other; the leader has a cable to both.
    stores, clients = stack.enter_context(Network()), stack.enter_context(Network())
    far: Namespace = clients.namespace()
    far.join(stores)
    stack.enter_context(emulator(stores.address))
    old = OracleProcess(STORE, f"{far.address}:0", lease=LEASE, prefix=far.prefix)
    stack.callback(old.kill)
    new = stack.enter_context(OracleProcess(STORE, lease=LEASE))
    of_old = [Drawing(stack, number, old.address) for number in range(2)]
    of_both = [Drawing(stack, number, old.address, new.address) for number in range(2, 4)]
    of_new = [Drawing(stack, 4, new.address)]
    everyone = [*of_old, *of_both, *of_new]

    def progress(drawing: list[Drawing], more: int = 50) -> None:
        counts = [len(one.events) for one in drawing]
        wait_until(
            lambda: all(
                len(one.events) >= count + more for one, count in zip(drawing, counts, strict=True)
            ),
            what="timestamps",
        )

    progress(of_old + of_both)
    wait_until(lambda: of_new[0].refused, what="the standby to refuse")
    assert not of_new[0].events and not any(one.refused for one in of_old + of_both)

    # Shorter than a lease: nobody else takes over, and nobody is refused.
    before = [len(one.refused) for one in of_old + of_both]
    far.cut(stores)
    cut = time.monotonic()
    wait_until(lambda: time.monotonic() > cut + LEASE / 4)
    far.mend(stores)
    progress(of_old + of_both)
    assert before == [len(one.refused) for one in of_old + of_both]
    assert not of_new[0].events

    far.cut(stores)
    progress(of_new + of_both)
    # The old one is still reached, and says that it hands out nothing.
    counts = [len(one.refused) for one in of_old]
    wait_until(
        lambda: all(len(one.refused) > was for one, was in zip(of_old, counts, strict=True)),
        what="the old leader to refuse",
    )
    drawn = [len(one.events) for one in of_old]
    taken_over = min(event.low for event in of_new[0].events)
    assert max(event.high for one in of_old for event in one.events) < taken_over
    progress(of_new)
    assert drawn == [len(one.events) for one in of_old], "handed out by two oracles at once"
    assert "could not renew its lease in the store" in of_old[0].refused[-1]

    # It comes back as standby, and takes over in its turn when the other one is gone.
    far.mend(stores)
    progress(of_new)
    new.kill()
    progress(of_old + of_both)
    for one in everyone:
        one.stop()
    assert max(one.longest for one in everyone) < 10
    events = [event for one in everyone for event in one.events]
    assert broken_promises(events) == []
