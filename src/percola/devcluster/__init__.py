"""A real HBase cluster on this machine, in one command: for tests, demos and development.

    percola dev-cluster up --folder ./cluster      # prints its address
    percola dev-cluster down --folder ./cluster    # also from another shell

    with Cluster(folder) as cluster:                    # or Cluster.small(folder): one of each
        repo = percola.open(cluster.address)            # hbase://127.0.0.1:PORT/percola
        cluster.process("regionserver-2").kill()        # kill -9; also stop, resume, start
        cluster.process("regionserver-2").start()
        cluster.await_ready()

ZooKeeper (one server, or an ensemble with `zookeepers=3`), NameNode, DataNodes, master and region
servers are separate processes, as in production, run from the jars that `percola hbase-jars server`
fetches. A cluster's files are in its folder:

    cluster.json   the number of processes, their ports and memory
    logs/NAME.log  each process's log; logs/NAME.out: its output
    conf/NAME/     its settings
    data/NAME/     its data: a restarted cluster still has its tables
    pids/NAME      its process id and start time

A cluster in a `with` block is stopped at its end, however the program ends: a guard process watches
it (`pids`). One that `up` started runs until `down`.
"""

from __future__ import annotations

from percola.devcluster import pids
from percola.devcluster.cluster import Cluster
from percola.devcluster.servers import Server, State
from percola.devcluster.settings import ClusterError, choose_ports, find_java

__all__ = ["Cluster", "ClusterError", "Server", "State", "choose_ports", "find_java", "pids"]
