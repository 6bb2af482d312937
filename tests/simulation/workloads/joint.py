"""Joint transactions: several clients write one together, and it is there whole or not at all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from percola import PercolaError, Repository, Table, Transaction, TransientError
from percola.errors import CommitUnknownError, RetriesExhaustedError, StoreError
from percola.testing.simulation import Client, Simulation, Sizes, Workload
from percola.transactions.jobs import JOBS, JointError, JointTransaction, Part, RowWrites, new_run

docs = Table("docs")
title = docs.column("title", str, observed=True)

JOINED = "a joint transaction committed"
UNDONE = "a joint transaction was given up"
NAMES = "names"
"""A row to which jobs and others add their names, so that a lost change is seen."""


@dataclass
class Job:
    """What the scheduler knows: it runs nowhere, and nothing happens to it.

    Attributes:
        parts: what attempts have reported, by partition.
        read_at: the timestamp at which it reads the rows that it writes; None: it writes blindly.
        acknowledged: the commit_ts that somebody was told.
        aborted: whether somebody was told that it has not committed.
    """

    name: str
    run: int
    partitions: int
    read_at: int | None = None
    parts: dict[int, Part] = field(default_factory=dict)
    tries: dict[int, int] = field(default_factory=dict)
    acknowledged: int | None = None
    aborted: bool = False
    over: bool = False

    def rows(self, partition: int) -> list[str]:
        return [f"{self.name}/{partition}/{number}" for number in range(2)]

    def all_rows(self) -> list[str]:
        return [row for partition in range(self.partitions) for row in self.rows(partition)]


class Joint(Workload):
    """Clients take over partitions, report, commit and abort; others write and read beside them."""

    name = "joint"
    tables = (docs, JOBS)
    sizes: ClassVar[Sizes] = {"partitions": (1, 3), "turns": (4, 10), "shared": (1, 2)}

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self.jobs: list[Job] = []
        self.attempts = 0
        # Who was told that its name has been added to the row NAMES.
        self.added: list[str] = []

    def turn(self, client: Client, number: int) -> None:
        draw = client.rng.random()
        try:
            if draw < 0.1:
                self.write_beside(client, number)
            elif draw < 0.15:
                self.add_beside(client, number)
            elif draw < 0.3:
                self.read_all(client)
            else:
                self.work(client)
        except (JointError, StoreError, TransientError, CommitUnknownError) as error:
            client.note(f"goes no further: {error}")
        except RetriesExhaustedError as error:
            client.note(f"goes no further: {error}")

    def write_beside(self, client: Client, number: int) -> None:
        row = f"shared {client.rng.randrange(self.size('shared'))}"
        client.repo.run(lambda t: t.set(title, row, f"{client.process.name}/{number}"), attempts=3)

    def add_beside(self, client: Client, number: int) -> None:
        who = f"{client.process.name}/{number}".replace(" ", "-")

        def add(t: Transaction) -> None:
            t.set(title, NAMES, f"{t.get(title, NAMES) or ''} {who}")

        client.repo.run(add, attempts=3)
        self.added.append(who)

    def read_all(self, client: Client) -> None:
        job = client.rng.choice(self.jobs) if self.jobs else None
        if job is not None:
            with client.repo.snapshot() as snapshot:
                found = snapshot.get_many([(title, row) for row in job.all_rows()])
            self.check_whole(job, found, f"{client.process.name}, reading at {snapshot.start_ts},")

    def work(self, client: Client) -> None:
        """The next thing that the scheduler would have somebody do."""
        job = self.current(client)
        joint = JointTransaction(
            client.repo,
            job.name,
            job.run,
            ["docs"],
            ttl_seconds=1.0,
            timeout=0.3,
            read_at=job.read_at,
        )
        missing = [one for one in range(job.partitions) if one not in job.parts]
        # Now and then a partition that is done is tried once more, as speculation does.
        if missing or client.rng.random() < 0.2:
            self.attempt(client, job, joint, client.rng.choice(missing or [0]))
        elif client.rng.random() < 0.15:
            job.over = True
            job.aborted = joint.abort()
        else:
            try:
                job.acknowledged = joint.commit(list(job.parts.values()))
                self.simulation.world.sightings[JOINED] += 1
                if job.read_at is not None:
                    self.added.append(str(job.run))
            except JointError:
                self.simulation.world.sightings[UNDONE] += 1
                raise
            finally:
                job.over = True

    def current(self, client: Client) -> Job:
        if not self.jobs or self.jobs[-1].over:
            again = self.jobs and self.jobs[-1].aborted and client.rng.random() < 0.5
            name = self.jobs[-1].name if again else f"job {len(self.jobs)}"
            run = new_run(client.repo)
            reads = client.rng.random() < 0.4
            read_at = client.repo.snapshot().start_ts if reads else None
            self.jobs.append(Job(name, run, self.size("partitions"), read_at))
        return self.jobs[-1]

    def attempt(self, client: Client, job: Job, joint: JointTransaction, partition: int) -> None:
        self.attempts += 1
        retry = job.tries[partition] = job.tries.get(partition, -1) + 1
        attempt = joint.attempt(partition, self.attempts, retry)
        if attempt is None:
            job.over = True
            return
        rows = job.rows(partition)
        if job.read_at is None:
            rows.append(f"shared {partition}")
        for row in rows:
            attempt.write([RowWrites("docs", row.encode(), {title.key: b"%d" % job.run})])
            if client.rng.random() < 0.2:
                client.think(0.2)
        if job.read_at is not None and partition == 0:
            with client.repo.snapshot(job.read_at) as snapshot:
                names = f"{snapshot.get(title, NAMES) or ''} {job.run}"
            attempt.write([RowWrites("docs", NAMES.encode(), {title.key: names.encode()})])
        job.parts[partition] = attempt.finish()

    def check_whole(self, job: Job, found: list[str | None], who: str) -> None:
        runs = {one.run for one in self.jobs if one.name == job.name}
        if found != [None] * len(found) and found not in [[str(run)] * len(found) for run in runs]:
            self.violate(
                f"{who} saw {found} of the joint transaction {job.name!r}: neither nothing nor "
                "all of it.",
                *((title, row) for row in job.all_rows()),
            )

    def at_rest(self, repo: Repository) -> None:
        now = repo.snapshot()
        names = (now.get(title, NAMES) or "").split()
        if missing := [one for one in self.added if one not in names]:
            self.violate(
                f"{NAMES!r} has {names}, without {missing}, who were told that they are in it.",
                (title, NAMES),
            )
        for job in self.jobs:
            cells = [(title, row) for row in job.all_rows()]
            found = now.get_many(cells)
            self.check_whole(job, found, "A reader at rest")
            versions = {now.version(*cell) for cell in cells}
            if len(versions) != 1:
                self.violate(f"{job.name!r} was committed at each of {versions}.", *cells)
            if job.acknowledged is not None and versions != {job.acknowledged}:
                self.violate(
                    f"{job.name!r} was acknowledged at {job.acknowledged}, and stands at "
                    f"{versions}.",
                    *cells,
                )
            if job.aborted and found[0] == str(job.run):
                self.violate(
                    f"The run {job.run} of {job.name!r} was given up, and is there.", *cells
                )
            try:
                committed = JointTransaction(repo, job.name, job.run, ["docs"]).committed()
            except PercolaError as error:
                self.violate(f"The outcome of {job.name!r} cannot be read: {error}", *cells)
                return
            if (committed or 0) not in versions:
                self.violate(f"{job.name!r} says {committed}, and stands at {versions}.", *cells)
