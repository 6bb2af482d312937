"""§2.2: "the transaction has conflicted … and should be retried after a backoff".

A retry runs the caller's function again, in a new transaction with a new snapshot: buffered
writes are never replayed (rule P13), since they were computed from outdated reads.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, TypeVar

from percola.clock import Clock, backoff
from percola.errors import ConflictingOptionsError, RetriesExhaustedError, TransientError
from percola.transactions.transaction import Transaction

T = TypeVar("T")

ATTEMPTS: Final = 20
FIRST_WAIT: Final = 0.001
LONGEST_WAIT: Final = 0.5


def run(
    function: Callable[[Transaction], T],
    begin: Callable[[], Transaction],
    clock: Clock,
    random_: random.Random,
    attempts: int = ATTEMPTS,
) -> T:
    """Run `function` in a transaction and commit it; retry after a back-off if it conflicts.

    Other exceptions of the function are not retried. Raises RetriesExhaustedError, caused by the
    last conflict, after `attempts` attempts.
    """
    if attempts < 1:
        raise ConflictingOptionsError(f"A transaction needs at least 1 attempt, not {attempts}.")
    attempt = 1
    while True:
        try:
            with begin() as transaction:
                return function(transaction)
        except TransientError as error:
            if attempt >= attempts:
                name = getattr(function, "__qualname__", repr(function))
                raise RetriesExhaustedError(
                    f"{name} did not commit in {attempts} attempts; the last one failed so: "
                    f"{error} If a cell is so hot, split it or notify it weakly."
                ) from error
        clock.sleep(backoff(random_, attempt, first=FIRST_WAIT, most=LONGEST_WAIT))
        attempt += 1
