"""The mutants: for every rule of the protocol a seeded bug that the simulation must find.

A simulation that finds nothing may be blind. So the protocol is broken here on purpose, one rule
at a time, by replacing a piece of it at the seams; nothing in Percola knows of that. Each mutant
must be found within some seeds, by what comes of it rather than by how it is done, and the seed
that finds it must pass without it.

    python -m tests.simulation.mutants                 hunt them all, and list what it took
    python -m tests.simulation.mutants --story NAME    tell the shortest story of one

A rule that another one upholds as well is broken together with that one, and its mutant says so.
"""

from __future__ import annotations

from tests.simulation.mutants.batching import BATCHING
from tests.simulation.mutants.collecting import COLLECTING
from tests.simulation.mutants.following import FOLLOWING
from tests.simulation.mutants.liveness import LIVENESS
from tests.simulation.mutants.locking import LOCKING
from tests.simulation.mutants.mutant import Mutant
from tests.simulation.mutants.notifying import NOTIFYING
from tests.simulation.mutants.outcomes import OUTCOMES
from tests.simulation.mutants.prepared import PREPARED
from tests.simulation.mutants.reading import READING
from tests.simulation.mutants.recipes import RECIPES
from tests.simulation.mutants.timestamps import TIMESTAMPS
from tests.simulation.mutants.volatile import VOLATILE

MUTANTS: dict[str, Mutant] = {
    one.name: one
    for section in (
        TIMESTAMPS,
        LOCKING,
        OUTCOMES,
        LIVENESS,
        READING,
        COLLECTING,
        FOLLOWING,
        NOTIFYING,
        BATCHING,
        RECIPES,
        VOLATILE,
        PREPARED,
    )
    for one in section
}
"""All of them, by name."""

RULES = (
    *(f"P{number}" for number in range(1, 15)),
    *(f"N{number}" for number in range(1, 8)),
    *(f"R{number}" for number in range(1, 4)),
)
"""Every rule of the protocol, and of the recipes: each has a mutant."""
