"""§2.1: Kerberos, where HBase wants it: that this process has a ticket, and words for what fails.

All of Kerberos is done by HBase's client, as its settings say. It logs in by a keytab, and does so
again before the ticket ends; or it takes the ticket that `kinit` has left, and looks for a newer
one when a server does not take the old one any more. What it does not do is to say what is missing:
without a ticket it sends no call and says that the master does not run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from percola.errors import StoreError, UsageError
from percola.store.hbase.jvm import CONF, OPTIONS, JavaObject, java_class

_SITE: Final = f"hbase-site.xml in the folder that {CONF} names"
_TICKET: Final = (
    "it has no valid ticket of Kerberos: run 'kinit', or name a keytab and its principal, "
    f"hbase.client.keytab.file and hbase.client.keytab.principal, in the {_SITE}"
)


class Trouble(NamedTuple):
    """What is wrong with Kerberos.

    Attributes:
        words: what is wrong and what to do.
        detail: what Java says of it.
        is_final: False: it may be over soon, so it is tried again for as long as patience lasts.
    """

    words: str
    detail: str = ""
    is_final: bool = True


# When a connection is made: no call was sent. Later failures are others' matter, for one may have.
_BEFORE: Final = (
    "failure to login",
    "GSS initiate failed",
    "Can't get Kerberos realm",
    "Found no valid authentication method",
    "No common protection layer",
    "fall back to SIMPLE auth",
)

# By what Java says, the particular before the general.
_TROUBLES: Final = {
    "Server not found in Kerberos database": Trouble(
        "the KDC does not know the principal that it takes HBase's servers to have: "
        "hbase.master.kerberos.principal and hbase.regionserver.kerberos.principal must be those "
        f"of the servers' own settings, in the {_SITE}"
    ),
    "Clock skew too great": Trouble(
        "the clocks of this machine, the KDC and HBase's servers are too far apart: set them"
    ),
    "No common protection layer": Trouble(
        f"hbase.rpc.protection must be that of the servers' own settings, in the {_SITE}"
    ),
    "fall back to SIMPLE auth": Trouble(
        "its servers do without Kerberos, which the client's settings want: leave "
        f"hbase.security.authentication out of the {_SITE}"
    ),
    "Unable to obtain password from user": Trouble(
        "its keytab cannot be read, or has no key of this principal: 'klist -k FILE' lists those "
        "that it has"
    ),
    "Client not found in Kerberos database": Trouble("the KDC does not know this principal"),
    **dict.fromkeys(
        ("LoginException: Pre-authentication information", "LoginException: Checksum failed"),
        Trouble("the key in its keytab is not the principal's, or not any more: have a new one"),
    ),
    **dict.fromkeys(
        ("Can't get Kerberos realm", "Cannot locate default realm", "Cannot locate KDC"),
        Trouble(
            "Java finds no krb5.conf that names the realm and its KDC: it is /etc/krb5.conf, or "
            f"the file that {OPTIONS}=-Djava.security.krb5.conf=FILE names"
        ),
    ),
    "Found no valid authentication method": Trouble(_TICKET),
    **dict.fromkeys(
        ("Failed to find any Kerberos", "Ticket expired"), Trouble(_TICKET, is_final=False)
    ),
    "GSS initiate failed": Trouble(
        "the KDC gives it no ticket for HBase's servers, or they do not take it", is_final=False
    ),
    "failure to login": Trouble(
        "the KDC does not answer, or refuses the login that the settings ask for", is_final=False
    ),
}


def trouble_of(said: Sequence[str]) -> Trouble | None:
    """What is wrong with Kerberos, if it is that.

    Args:
        said: what an exception says, and then each of its causes.
    """
    if not any(sign in one for sign in _BEFORE for one in said):
        return None
    for sign, trouble in _TROUBLES.items():
        telling = [one for one in said if sign in one]
        if telling:
            # Others are wrapped around these, or are parts of them.
            whole = [one for one in telling if "failure to login" in one or "Mechanism" in one]
            detail = min(whole or telling, key=len)
            return trouble._replace(detail=detail.strip().partition("\n")[0][:300])
    return None


def check_login(settings: JavaObject, place: object) -> None:
    """Refuse to go on without a ticket, where the client's settings want Kerberos.

    Raises UsageError for settings that contradict each other, StoreError if there is no ticket.
    """
    provider = java_class("org.apache.hadoop.hbase.security.UserProvider").instantiate(settings)
    if not provider.isHBaseSecurityEnabled():
        return
    if not provider.isHadoopSecurityEnabled():
        raise UsageError(
            f"hbase.security.authentication is 'kerberos' in the {_SITE}, and "
            "hadoop.security.authentication is not: set it in a core-site.xml in the same folder."
        )
    if provider.shouldLoginFromKeytab() or _has_ticket(provider):
        return  # Connecting logs in by the keytab.
    # Java remembers that there was none when it first looked.
    java_class("org.apache.hadoop.security.UserGroupInformation").loginUserFromSubject(None)
    if not _has_ticket(provider):
        raise no_login(place, Trouble(_TICKET))


def no_login(place: object, trouble: Trouble) -> StoreError:
    """That this process gets nowhere, for its login."""
    detail = f" ({trouble.detail.rstrip('.')})" if trouble.detail else ""
    return StoreError(f"This process cannot log in to {place}: {trouble.words}{detail}.")


def _has_ticket(provider: JavaObject) -> bool:
    return bool(provider.getCurrent().getUGI().hasKerberosCredentials())
