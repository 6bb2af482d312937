"""What to test with: the conformance suite that every store has to pass.

It needs pytest and Hypothesis. Derive a test class from `StoreConformance`, or, for a store
that commits in one step, from `OneStepConformance`.
"""

from __future__ import annotations

import pytest

# So that a failed claim shows what was found and what was expected.
pytest.register_assert_rewrite(
    "percola.testing.feed_claims",
    "percola.testing.one_step",
    "percola.testing.row_claims",
    "percola.testing.safe_point_claims",
    "percola.testing.scan_claims",
    "percola.testing.store_model",
    "percola.testing.conformance",
)

from percola.testing.conformance import StoreConformance  # noqa: E402
from percola.testing.one_step import OneStepConformance  # noqa: E402

__all__ = ["OneStepConformance", "StoreConformance"]
