"""What Java says of Kerberos, in words: what is missing, and whether to try again."""

from __future__ import annotations

import pytest

from percola.errors import StoreError
from percola.store.hbase.client import Calls, Place, Tries
from percola.store.hbase.errors import Failure, Meaning
from percola.store.hbase.kerberos import no_login, trouble_of

CALL = "Call to address=localhost:16020 failed on local exception: "
SASL = "javax.security.sasl.SaslException: "
LOGIN = "failure to login: for principal: shop@A.ORG from keytab /k javax.security.auth.login."


class JavaError:
    """What a Java exception answers, without Java."""

    def __init__(self, text: str) -> None:
        self._text = text

    def getMessage(self) -> str:  # noqa: N802
        return self._text

    def getCause(self) -> None:  # noqa: N802
        return None

    def getClass(self) -> JavaError:  # noqa: N802
        return self

    def getName(self) -> str:  # noqa: N802
        return "java.io.IOException"

    def getSuperclass(self) -> None:  # noqa: N802
        return None


def gss(why: str) -> list[str]:
    """What a failed connection and its causes say: as HBase 2.6 and Java 17 do."""
    caused = f"No valid credentials provided (Mechanism level: {why})"
    failed = f"GSS initiate failed [Caused by GSSException: {caused}]"
    return [f"{SASL}{CALL}{SASL}{failed}", f"{CALL}{SASL}{failed}", "GSS initiate failed", caused]


@pytest.mark.parametrize(
    ("said", "words", "detail", "meaning"),
    [
        (gss("Failed to find any Kerberos tgt"), "kinit", "any Kerberos tgt", Meaning.NOT_DONE),
        (gss("Ticket expired (32) - PROCESS_TGS"), "kinit", "expired", Meaning.NOT_DONE),
        (gss("Receive timed out"), "KDC", "timed out", Meaning.NOT_DONE),
        (gss("Checksum failed"), "they do not take it", "Checksum", Meaning.NOT_DONE),
        (
            gss("Server not found in Kerberos database (7)"),
            "hbase.regionserver.kerberos.principal", "(7)", Meaning.REFUSED,
        ),
        (
            [LOGIN + "LoginException: Unable to obtain password from user\n"],
            "klist -k", "shop@A.ORG from keytab /k", Meaning.REFUSED,
        ),
        (
            [LOGIN + "LoginException: Checksum failed", "Checksum failed"],
            "key in its keytab", "shop@A.ORG", Meaning.REFUSED,
        ),
        (
            [LOGIN + "LoginException: Connection refused", "Connection refused"],
            "KDC does not answer", "shop@A.ORG", Meaning.NOT_DONE,
        ),
        (
            [CALL + "Server asks us to fall back to SIMPLE auth.\n\tat org.a.b"],
            "without Kerberos", "SIMPLE", Meaning.REFUSED,
        ),
        (
            ["Can't get Kerberos realm", "KrbException: Cannot locate default realm"],
            "java.security.krb5.conf", "realm", Meaning.REFUSED,
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_with_kerberos_is_said_and_tried_again_if_it_may_be_over_soon(
    said: list[str], words: str, detail: str, meaning: Meaning
) -> None:
    trouble = trouble_of(said)
    assert trouble is not None
    assert words in trouble.words
    assert detail in trouble.detail
    assert Failure(("java.io.IOException",), said[0], trouble).meaning is meaning
    assert "\n" not in str(no_login("HBase at here:2181", trouble))


@pytest.mark.parametrize(
    "said",
    [
        ["Connection reset"],
        # A connection that was made: its calls may have been carried out.
        ["Problems unwrapping SASL buffer", "Token had invalid Integrity Check: Checksum failed"],
    ],
)
def test_what_fails_later_is_no_trouble_with_the_login(said: list[str]) -> None:
    assert trouble_of(said) is None
    failure = Failure(("javax.security.sasl.SaslException", "java.io.IOException"), said[0])
    assert failure.meaning is Meaning.UNKNOWN


def test_what_is_not_sent_while_a_new_login_is_under_way_is_sent_again() -> None:
    text = f"{CALL}java.io.IOException: Can not send request because relogin is in progress."
    assert Failure(("java.io.IOException",), text).meaning is Meaning.NOT_DONE


def test_of_a_server_that_closes_every_connection_it_is_said_what_it_may_want() -> None:
    calls = Calls(Place("here:2181", "shop"), request_seconds=1, timeout_seconds=2)
    closed = (
        f"{CALL}org.apache.hadoop.hbase.exceptions.ConnectionClosedException: Connection closed"
    )
    for text, is_said in ((closed, True), ("Connection refused", False)):
        error = str(calls.silence(Failure(("java.io.IOException",), text), "connecting"))
        assert ("only Kerberos or TLS" in error) is is_said


def test_when_the_timeout_ends_the_reason_is_given_and_not_that_a_new_login_was_under_way() -> None:
    calls = Calls(Place("here:2181", "shop"), request_seconds=1, timeout_seconds=0.1)
    tries = Tries(calls, "reading")
    tries.failed(JavaError(gss("Failed to find any Kerberos tgt")[1]))

    def go_on() -> None:
        for _ in range(100):
            tries.failed(JavaError("Can not send request because relogin is in progress."))

    with pytest.raises(StoreError, match="run 'kinit'"):
        go_on()
