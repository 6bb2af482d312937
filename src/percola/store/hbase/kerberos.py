"""§2.1: Kerberos, where HBase requires it: the check for a ticket, and error messages.

HBase's client does all of Kerberos, according to its settings. It logs in with a keytab, and again
before the ticket expires; or it uses the ticket that `kinit` obtained, and looks for a newer one
when a server rejects the old one. It does not report what is missing, however: without a ticket it
sends no call and reports that the master is not running.
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
    """A failure of Kerberos.

    Attributes:
        words: what is wrong and what to do.
        detail: Java's message.
        is_final: False if it may be temporary, so that the call is retried until its time limit.
    """

    words: str
    detail: str = ""
    is_final: bool = True


# Failures to connect, where no call was sent. Later failures are not listed: a call may have been.
_BEFORE: Final = (
    "failure to login",
    "GSS initiate failed",
    "Can't get Kerberos realm",
    "Found no valid authentication method",
    "No common protection layer",
    "fall back to SIMPLE auth",
)

# By Java's message, the specific ones before the general ones.
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
    """The Kerberos failure behind an exception, if it is one.

    Args:
        said: the messages of the exception and of each of its causes.
    """
    if not any(sign in one for sign in _BEFORE for one in said):
        return None
    for sign, trouble in _TROUBLES.items():
        telling = [one for one in said if sign in one]
        if telling:
            # The other messages wrap these, or are parts of them.
            whole = [one for one in telling if "failure to login" in one or "Mechanism" in one]
            detail = min(whole or telling, key=len)
            return trouble._replace(detail=detail.strip().partition("\n")[0][:300])
    return None


def check_login(settings: JavaObject, place: object) -> None:
    """Check that there is a ticket, if the client's settings require Kerberos.

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
    # Java caches that there was none when it first checked.
    java_class("org.apache.hadoop.security.UserGroupInformation").loginUserFromSubject(None)
    if not _has_ticket(provider):
        raise no_login(place, Trouble(_TICKET))


def no_login(place: object, trouble: Trouble) -> StoreError:
    """The error of a process that cannot log in."""
    detail = f" ({trouble.detail.rstrip('.')})" if trouble.detail else ""
    return StoreError(f"This process cannot log in to {place}: {trouble.words}{detail}.")


def _has_ticket(provider: JavaObject) -> bool:
    return bool(provider.getCurrent().getUGI().hasKerberosCredentials())
