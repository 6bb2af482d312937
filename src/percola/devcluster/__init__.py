"""A real HBase cluster on this machine, in one command: for tests, demos and development.

    percola dev-cluster up --folder ./cluster      # prints its address
    percola dev-cluster down --folder ./cluster    # also from another shell

    with Cluster(folder) as cluster:                    # or Cluster.small(folder): one of each
        repo = percola.open(cluster.address)            # hbase://127.0.0.1:PORT/percola
        cluster.process("regionserver-2").kill()        # kill -9; also stop, resume, start
        cluster.process("regionserver-2").start()
        cluster.await_ready()

ZooKeeper, NameNode, DataNodes, master and region servers are processes of their own, as they are in
production, made of the jars that `percola hbase-jars server` fetches. Everything of a cluster
stands in its folder:

    cluster.json   how many processes, on which ports, with how much memory
    logs/NAME.log  what each process logs; logs/NAME.out: what it printed
    conf/NAME/     its settings
    data/NAME/     what it keeps: a cluster that is taken down and up again has its tables
    pids/NAME      its process

A cluster in a `with` block ends with it, whatever ends the program: a guard process watches
(`pids`). One that `up` started runs until `down`.
"""

from __future__ import annotations

from percola.devcluster.cluster import Cluster
from percola.devcluster.servers import Server, State
from percola.devcluster.settings import ClusterError

__all__ = ["Cluster", "ClusterError", "Server", "State"]
