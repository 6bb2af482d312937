"""An HBase that takes only Kerberos: by keytab or ticket all works, and others are told why not."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jpype
import pytest
from children import Child
from commands import is_error, run
from hbase import repository
from kerberos import SERVER, STRANGER, USER, KerberosHBase, require_kdc
from stores import put

from percola import Table
from percola.errors import StoreError
from percola.store.hbase.client import Place
from percola.store.hbase.jvm import java_class
from percola.store.hbase.store import HBaseStore

SECURITY = "org.apache.hadoop.hbase.security.access."

docs = Table("docs")
title = docs.column("title", str)


def grant(pipe: Connection, variables: Mapping[str, str], place: Place, user: str) -> None:
    """As HBase's operator: make a namespace, and permit a user what the documentation says."""
    os.environ.update(variables)
    store = HBaseStore(place)
    connection = store._calls.client().connection
    namespace = java_class("org.apache.hadoop.hbase.NamespaceDescriptor").create(place.namespace)
    connection.getAdmin().createNamespace(namespace.build())
    action = java_class(SECURITY + "Permission$Action")
    needed = [action.READ, action.WRITE, action.EXEC, action.CREATE]
    java_class(SECURITY + "AccessControlClient").grant(connection, place.namespace, user, needed)
    store.close()


def keep(pipe: Connection, variables: Mapping[str, str], place: Place) -> str | None:
    """A program of a user: commits a transaction, and reads it."""
    os.environ.update(variables)
    row = str(os.getpid())  # Timestamps begin anew in each process.
    with repository(HBaseStore(place), [docs]) as repo:
        put(repo, title, row, "kept")
        return repo.snapshot().get(title, row)


def keep_with_a_ticket(
    pipe: Connection, variables: Mapping[str, str], place: Place, folder: Path
) -> tuple[str, str | None]:
    """The same by a ticket that comes after the first try; what that said, and what was read."""
    with pytest.raises(StoreError) as caught:
        keep(pipe, variables, place)
    # As kinit does.
    jpype.addClassPath(f"{require_kdc()}/*")
    file = java_class("java.io.File")
    client = java_class("org.apache.kerby.kerberos.kerb.client.KrbClient")(file(str(folder)))
    client.init()
    ticket = client.requestTgt(USER, file(str(folder / "keytab")))
    client.storeTicket(ticket, file(variables["KRB5CCNAME"].removeprefix("FILE:")))
    return str(caught.value), keep(pipe, variables, place)


@pytest.mark.long
def test_with_a_keytab_or_a_ticket_all_works_and_who_has_neither_or_no_permission_is_told(
    tmp_path: Path, java_home: Path, wait_until: Callable[..., Any]
) -> None:
    with KerberosHBase(tmp_path, wait_until) as site:
        place = site.place("shop")
        user = USER.partition("@")[0]
        with Child(grant, site.variables("operator", SERVER), place, user) as operator:
            operator.hear()
        with Child(keep, site.variables("keytab", USER), place) as by_keytab:
            assert by_keytab.hear() == "kept"
        with Child(keep_with_a_ticket, site.variables("ticket"), place, tmp_path) as by_ticket:
            refusal, kept = by_ticket.hear()
        assert "run 'kinit', or name a keytab" in refusal
        assert kept == "kept"

        oracle = ("--repo", f"hbase://{place.quorum}/shop", "oracle", "--listen", "127.0.0.1:0")
        refused = run(*oracle, **site.variables("stranger", STRANGER))
        assert is_error(refused, "permission", "stranger", "grant 'USER', 'RWXC', '@shop'")
