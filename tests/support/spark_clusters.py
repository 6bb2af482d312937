"""Spark's own cluster manager, with two workers on this machine."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home
from server_process import free_port


@contextlib.contextmanager
def standalone_cluster(
    folder: Path, environment: Mapping[str, str], wait_until: Callable[..., object]
) -> Iterator[str]:
    """Spark's master and two workers with a core each, in folders of their own; the master's URL.

    Args:
        folder: theirs; a worker's is `worker-0` or `worker-1`.
        environment: theirs and that of their executors; it has JAVA_HOME.
    """
    spark_class = Path(_find_spark_home()) / "bin" / "spark-class"
    with contextlib.ExitStack() as stack:

        def start(name: str, kind: str, *options: object, ready: str) -> None:
            (folder / name).mkdir(parents=True)
            log = folder / f"{name}.log"
            with log.open("w") as output:
                process = subprocess.Popen(
                    [spark_class, f"org.apache.spark.deploy.{kind}", *map(str, options)],
                    cwd=folder / name,
                    env={**environment, "SPARK_DAEMON_MEMORY": "256m"},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=output,
                )
            stack.callback(process.wait)
            stack.callback(process.terminate)
            wait_until(
                lambda: ready in log.read_text() or process.poll() is not None,
                seconds=60,
                what=f"{name} to start",
            )
            assert process.poll() is None, log.read_text()

        host, port = "127.0.0.1", free_port()
        start(
            *("master", "master.Master", "--host", host, "--port", port, "--webui-port", 0),
            ready="I have been elected leader",
        )
        for number in range(2):
            name = f"worker-{number}"
            start(
                *(name, "worker.Worker", "--host", host, "--cores", 1, "--memory", "1g"),
                *("--webui-port", 0, "--work-dir", folder / name, f"spark://{host}:{port}"),
                ready="Successfully registered with master",
            )
        yield f"spark://{host}:{port}"
