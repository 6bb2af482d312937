"""Testing tools: the conformance suite that every store must pass.

An extra, `pip install 'percola[testing]'`. Derive a test class from `StoreConformance`, or, for a
store that commits in one step, from `OneStepConformance`.
"""

from __future__ import annotations

from percola import extras

try:
    import hypothesis  # noqa: F401
    import pytest
except ImportError as error:
    raise ImportError(
        extras.missing("percola.testing", error, "testing"), name=error.name
    ) from error

# So that a failed claim shows what was found and what was expected.
pytest.register_assert_rewrite(
    "percola.testing.conformance.feed",
    "percola.testing.conformance.one_step",
    "percola.testing.conformance.rows",
    "percola.testing.conformance.safe_point",
    "percola.testing.conformance.scans",
    "percola.testing.conformance.model",
    "percola.testing.conformance.suite",
)

from percola.testing.conformance.one_step import OneStepConformance  # noqa: E402
from percola.testing.conformance.suite import StoreConformance  # noqa: E402

__all__ = ["OneStepConformance", "StoreConformance"]
