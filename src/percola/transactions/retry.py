"""§2.2: "the transaction has conflicted … and should be retried after a backoff".

A retry runs the caller's function again, in a new transaction with a new snapshot: buffered
writes are never replayed (rule P13), since they were computed from outdated reads.

If another transaction's lock was in the way, the next attempt waits for it first, as a reader
would, until it is gone: its owner may be dead, or hang. All attempts of a function that reads
nothing would be over before a lock's time to live is. Nobody waits for the one that waits, which
holds no lock any more (P14).
"""

from __future__ import annotations

import contextlib
import inspect
import random
from collections.abc import Callable
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Final, TypeVar

from percola.clock import Clock, backoff
from percola.errors import (
    ConflictError,
    ConflictingOptionsError,
    LockTimeoutError,
    RetriesExhaustedError,
    TransientError,
    UsageError,
)
from percola.transactions.context import TransactionContext
from percola.transactions.transaction import Transaction

T = TypeVar("T")

ATTEMPTS: Final = 20
FIRST_WAIT: Final = 0.001
LONGEST_WAIT: Final = 0.5

_LATER: Final = (CoroutineType, GeneratorType, AsyncGeneratorType)


def works_later(function: object) -> bool:
    """Whether a call of the function does nothing: what it returns has yet to be run."""
    checks = (
        inspect.iscoroutinefunction,
        inspect.isgeneratorfunction,
        inspect.isasyncgenfunction,
    )
    # Where an object is called, such as a loader with its settings, its method is what counts.
    called = type(function).__call__ if callable(function) else None
    return any(check(one) for check in checks for one in (function, called))


def not_callable_with(function: Callable[..., object], count: int) -> str | None:
    """Why the function cannot be called with so many arguments; None if it can, as far as known."""
    try:
        # A decorator's own arguments count, not those of the function that it wraps.
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*[None] * count)
    except TypeError as error:
        return str(error)
    return None


def is_undone(result: object) -> bool:
    """Whether a function has returned this in place of its work: it has yet to be run."""
    if isinstance(result, CoroutineType):
        result.close()  # Else Python warns that it was never awaited.
        return True
    if isinstance(result, GeneratorType):
        return inspect.getgeneratorstate(result) == inspect.GEN_CREATED
    return isinstance(result, AsyncGeneratorType)


def run(
    function: Callable[[Transaction], T],
    begin: Callable[[], Transaction],
    clock: Clock,
    random_: random.Random,
    attempts: int = ATTEMPTS,
    context: TransactionContext | None = None,
) -> T:
    """Run `function` in a transaction and commit it; retry after a back-off if it conflicts.

    With the `context` of its repository, it waits for locks that were in the way.
    Other exceptions of the function are not retried. Raises RetriesExhaustedError, caused by the
    last conflict, after `attempts` attempts; UsageError for a function that is a coroutine or a
    generator, or returns a coroutine.
    """
    if not isinstance(attempts, int) or attempts < 1:
        raise ConflictingOptionsError(f"A transaction needs at least 1 attempt, not {attempts!r}.")
    attempt = 1
    while True:
        try:
            with begin() as transaction:
                result = function(transaction)
                if isinstance(result, _LATER):
                    _check_result(function, result)
                return result
        except TransientError as error:
            if attempt >= attempts:
                name = getattr(function, "__qualname__", repr(function))
                hint = " If a cell is so hot, split it or notify it weakly."
                raise RetriesExhaustedError(
                    f"{name} did not commit in {attempts} attempts; the last one failed so: "
                    f"{error}{hint if isinstance(error, ConflictError) else ''}"
                ) from error
            if context is not None and isinstance(error, ConflictError) and error.locked:
                _wait_for_lock(context, error)
        clock.sleep(backoff(random_, attempt, first=FIRST_WAIT, most=LONGEST_WAIT))
        attempt += 1


def _wait_for_lock(context: TransactionContext, conflict: ConflictError) -> None:
    """Wait until the lock that a transaction has met is gone, for as long as a reader may."""
    cell, resolver = conflict.cell, context.resolver
    if (cell.table, b"") not in context.columns:
        return  # The function has met it in another repository.
    now = context.oracle.read_timestamp()
    with contextlib.suppress(LockTimeoutError):
        for _, start_ts, raw in resolver.locks_on([cell]):
            resolver.wait_below(cell, start_ts, raw, now)


def _check_result(
    function: Callable[..., object],
    result: CoroutineType[object, object, object]
    | GeneratorType[object, object, object]
    | AsyncGeneratorType[object, object],
) -> None:
    """Raise UsageError if the function's work has yet to be done, so that nothing is committed."""
    if isinstance(result, CoroutineType):
        result.close()  # Else Python warns that it was never awaited.
    elif not works_later(function):
        return  # Such as a scan, which says so itself if it is read too late.
    name = getattr(function, "__qualname__", repr(function))
    raise UsageError(
        f"{name} cannot run in a transaction: a coroutine or a generator does its work after the "
        "transaction has committed. Nothing was written. Make it a plain function that returns "
        "its results."
    )
