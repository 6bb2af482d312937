"""Mistakes in what a server lets clients do, in the words for missing extras, and in skips."""

from __future__ import annotations

from tests.planted.planted import Planted

_LIMITS = "tests/integration/test_oracle_limits.py::"
_LOCK_SERVICE = "tests/integration/test_oracle_lock_service.py::"
_METRICS = "tests/unit/test_metrics_port.py::"
_NOT_RUN = "tests/tree/test_not_run.py::"
_EXTRAS = "tests/unit/test_extras.py::"

PLANTED = [
    Planted(
        "oracle-any-loopback-address-will-do",
        "A name that stands for one address on loopback and one beyond it needs no token.",
        file="src/percola/oracle/server.py",
        old="    return all(ipaddress.ip_address(str(address[0])).is_loopback",
        new="    return any(ipaddress.ip_address(str(address[0])).is_loopback",
        tests=[f"{_LIMITS}test_a_name_that_leads_beyond_loopback_needs_a_token"],
    ),
    Planted(
        "oracle-tls-counts-as-a-token",
        "TLS that asks clients for no certificate is taken for a check of who they are.",
        file="src/percola/oracle/server.py",
        old="(tls is not None and tls.client_roots)",
        new="(tls is not None)",
        tests=[f"{_LIMITS}test_beyond_loopback_certificates_of_clients_do_as_well_as_a_token"],
    ),
    Planted(
        "oracle-displaces-the-newest-stream",
        "Above the limit the stream that was used last is ended, so that idle ones stay.",
        file="src/percola/oracle/server.py",
        old="ended = min(self._streams, key=lambda one: one.used)",
        new="ended = max(self._streams, key=lambda one: one.used)",
        tests=[
            f"{_LIMITS}test_the_stream_that_makes_place_is_the_one_that_was_used_least_recently"
        ],
    ),
    Planted(
        "oracle-stream-is-not-marked-as-used",
        "A stream counts as idle since it began, however often it is used.",
        file="src/percola/oracle/server.py",
        old="                stream.used = time.monotonic()\n",
        new="",
        tests=[
            f"{_LIMITS}test_the_stream_that_makes_place_is_the_one_that_was_used_least_recently"
        ],
    ),
    Planted(
        "lock-service-asks-for-no-token",
        "The lock service beside an oracle with a token serves anyone.",
        file="src/percola/oracle/server.py",
        old="LockServiceServer(lambda: self.ranges.holds, self._admit)",
        new="LockServiceServer(lambda: self.ranges.holds)",
        tests=[f"{_LIMITS}test_the_lock_service_asks_for_the_token_of_its_oracle"],
    ),
    Planted(
        "lock-service-works-on-standby",
        "Every oracle process serves locks, so that two processes hold one lock.",
        file="src/percola/oracle/server.py",
        old="LockServiceServer(lambda: self.ranges.holds, self._admit)",
        new="LockServiceServer(lambda: True, self._admit)",
        tests=[f"{_LIMITS}test_the_lock_service_of_a_standby_is_at_rest"],
    ),
    Planted(
        "oracle-takes-pings-for-abuse",
        "The oracle's server ends connections that look after it, and with them their locks.",
        file="src/percola/oracle/server.py",
        old="    *SERVER_OPTIONS,\n",
        new="",
        tests=[f"{_LOCK_SERVICE}test_an_idle_session_outlives_the_keep_alive"],
    ),
    Planted(
        "lock-service-refuses-above-its-limit",
        "A lock that is not recorded is refused, so that nobody works on that row.",
        file="src/percola/coordination/lock_service/server.py",
        old="                if taken and (fits or held is not None):\n",
        new="                if taken := taken and (fits or held is not None):\n",
        tests=[f"{_LIMITS}test_locks_above_the_limit_are_granted_and_not_kept"],
    ),
    Planted(
        "lock-service-forgets-by-name",
        "The end of a displaced stream ends the session that has its name by then.",
        file="src/percola/coordination/lock_service/server.py",
        old="if self._sessions.get(session.name) is not session:",
        new="if session.name not in self._sessions:",
        tests=[f"{_LIMITS}test_the_end_of_a_displaced_stream_does_not_end_a_new_one_of_its_name"],
    ),
    Planted(
        "metrics-keep-idle-connections",
        "Connections above the limit stay, so that each idle one takes a thread.",
        file="src/percola/cli/metrics_port.py",
        old="                oldest.shutdown(socket.SHUT_RDWR)",
        new="                oldest.fileno()",
        tests=[
            f"{_METRICS}test_idle_connections_neither_lock_a_scraper_out_nor_take_a_thread_each"
        ],
    ),
    Planted(
        "webindex-exits-with-0-without-its-extra",
        "The command that could not run reports success.",
        file="src/webindex/__main__.py",
        old="        sys.exit(1)\n",
        new="        sys.exit(0)\n",
        tests=[f"{_EXTRAS}test_webindex_without_its_extra_says_how_to_install_it"],
    ),
    Planted(
        "skips-leave-the-run-green",
        "A run in which tests could not run says so, and ends with exit status 0.",
        file="tests/support/needs.py",
        old="            session.exitstatus = pytest.ExitCode.TESTS_FAILED\n",
        new="            pass\n",
        tests=[f"{_NOT_RUN}test_a_run_that_lacks_something_fails_and_says_what_and_why"],
    ),
    Planted(
        "tests-inherit-an-ignored-sigint",
        "In the background of a script, Ctrl-C does not reach what tests start.",
        file="tests/conftest.py",
        old="    if runs_tests and signal",
        new="    if not runs_tests and signal",
        tests=[f"{_NOT_RUN}test_ctrl_c_arrives_where_the_run_was_started_with_sigint_ignored"],
    ),
]
