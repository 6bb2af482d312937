"""`--spark` and `--master`: a command's work on all rows as a Spark job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from percola.cli.display import say_note
from percola.connect.address import network_address
from percola.errors import UsageError
from percola.ranges import HERE, Runner
from percola.repository import Repository

if TYPE_CHECKING:
    from percola.spark import Progress

F = TypeVar("F", bound=Callable[..., Any])

_CONFIG: Final = {
    # The JVM only schedules tasks here: a quick start matters more than optimised code.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


def spark_options(command: F) -> F:
    """Add `--spark` and `--master`; the command gets `master`, None without either of them."""

    def keep(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        if value and not context.params.get("master"):
            context.params["master"] = "local[*]"

    master = click.option(
        "--master",
        metavar="URL",
        is_eager=True,
        help="The Spark master of that job, local[*] by default; --spark may be left out then.",
    )
    spark = click.option(
        "--spark",
        is_flag=True,
        expose_value=False,
        callback=keep,
        help="As a Spark job, whose tasks work on ranges of rows.",
    )
    return spark(master(command))


@contextmanager
def runner_of(
    repo: Repository,
    master: str | None,
    name: str,
    line: Callable[[str], None],
    *,
    target: str = "",
) -> Iterator[Runner]:
    """This process; with a master a Spark session, which ends with the block if it is begun here.

    A session that is there, as under `spark-submit`, is used whatever the master. `line` is told
    how many ranges are done; `target` is where tasks write to besides the repository.
    """
    if master is None:
        yield HERE
        return
    try:
        from percola.spark import OnSpark, for_tasks, spark_context
    except ImportError as error:
        raise UsageError(str(error)) from error

    def show(progress: Progress) -> None:
        line(f"{progress.step}: {progress.done:,} of {progress.total:,} ranges")

    line("Starting Spark")
    config = _CONFIG | for_tasks()
    with spark_context(master, app=f"percola {name}", config=config) as context:
        runner = OnSpark(context, repo, show=show)
        if not runner.on_this_machine:
            if network_address(repo.address) is None and target and network_address(target):
                say_note(
                    f"This machine writes files beside {repo.address}, which Spark's executors "
                    "then put into the store: on other machines that path has to be one that all "
                    "share."
                )
            elif network_address(repo.address) is None:
                say_note(
                    f"{repo.address} is a folder of this machine, so Spark's executors have to run "
                    "here. On other machines, use a network store."
                )
            if target and network_address(target) is None:
                say_note(
                    f"Spark's executors write files beside {target}, which this machine then puts "
                    "together: on other machines that path has to be one that all share."
                )
        yield runner
