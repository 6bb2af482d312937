"""Mistakes in what a server lets clients do, in the words for missing extras, and in skips."""

from tests.planted.planted import in_file

_LIMITS = "tests/integration/test_oracle_limits.py"
_STREAM = "tests/paper/test_2_3_oracle_stream.py"
_LOCKS = "tests/unit/test_lock_service.py"
_SHARES = "tests/integration/test_oracle_lock_service.py"
_RELAY = "tests/paper/test_2_3_relay.py"
_METRICS = "tests/unit/test_metrics_port.py"
_EXTRAS = "tests/unit/test_extras.py"
_NOT_RUN = "tests/tree/test_not_run.py"
in_server = in_file("src/percola/oracle/server.py", _LIMITS)
in_rpc_server = in_file("src/percola/rpc/server.py", _LIMITS)
in_lock_service_server = in_file("src/percola/coordination/lock_service/server.py", _LOCKS)
in_lock_service_client = in_file("src/percola/coordination/lock_service/client.py", _SHARES)

PLANTED = [
    in_server(
        "oracle-any-loopback-address-will-do",
        "A name that stands for one address on loopback and one beyond it needs no token.",
        "test_a_name_that_leads_beyond_loopback_needs_a_token",
        old="    return all(ipaddress.ip_address(str(address[0])).is_loopback",
        new="    return any(ipaddress.ip_address(str(address[0])).is_loopback",
    ),
    in_server(
        "oracle-tls-counts-as-a-token",
        "TLS that asks clients for no certificate is taken for a check of who they are.",
        "test_beyond_loopback_certificates_of_clients_do_as_well_as_a_token",
        old="(tls is not None and tls.client_roots)",
        new="(tls is not None)",
    ),
    in_rpc_server(
        "oracle-displaces-the-newest-connection",
        "Above the limit the connection that was used last is ended, so that idle ones stay.",
        "test_the_connection_that_makes_place_is_the_one_that_was_used_least_recently",
        old="self.end(min(clients, key=lambda one: one.used))",
        new="self.end(max(clients, key=lambda one: one.used))",
    ),
    in_rpc_server(
        "oracle-connection-is-not-marked-as-used",
        "A connection counts as idle since it began, however often it is used.",
        "test_the_connection_that_makes_place_is_the_one_that_was_used_least_recently",
        old="                return\n        peer.used = self.now\n",
        new="                return\n",
    ),
    in_file("src/percola/rpc/greeter.py", _LIMITS)(
        "oracle-serves-without-the-token",
        "A client with a wrong token is served.",
        "test_without_the_token_nothing_is_served",
        old="elif self._token and not hmac.compare_digest(token, self._token):",
        new="elif self._token and not token:",
    ),
    in_rpc_server(
        "oracle-reads-from-a-peer-that-does-not",
        "A peer that never reads its answers fills the oracle's memory with them.",
        "test_a_peer_that_reads_no_answer_is_not_read_from_and_others_do_not_wait",
        old="            self._poll.modify(peer.socket.fileno(), select.EPOLLOUT)\n",
        new="            self._poll.modify(peer.socket.fileno(), select.EPOLLIN)\n",
    ),
    in_file("src/percola/rpc/client.py", _STREAM)(
        "oracle-client-takes-any-answer",
        "An answer to another request is taken for that of the last one.",
        "test_an_answer_to_another_request_is_an_error",
        old="if answer.number != number or answer.kind not in",
        new="if answer.kind not in",
    ),
    in_lock_service_client(
        "lock-service-shared-by-the-order-of-addresses",
        "Clients that name the oracles in another order lock the same rows elsewhere.",
        "test_each_process_of_the_service_serves_a_share_of_the_rows_the_same_one_to_all",
        old="preferred = sorted(self._links, key=lambda link: _preference(slot, link.address))",
        new="preferred = self._links[slot % 2 :] + self._links[: slot % 2]",
    ),
    in_lock_service_client(
        "lock-service-rows-of-a-lost-process-stay-with-it",
        "While a process of the service is gone, its rows are locked against nobody.",
        "test_the_rows_of_a_process_that_is_killed_go_to_the_others_until_it_is_back",
        old="next((link for link in preferred if link.is_usable()), None)",
        new="next((link for link in preferred[:1] if link.is_usable()), None)",
    ),
    in_file("src/percola/coordination/lock_service/link.py", _SHARES)(
        "lock-service-wakes-by-one-process-alone",
        "If the process that is told of wake-ups is gone, no other is told of them.",
        "test_a_wake_up_reaches_every_listener_whichever_process_is_told_of_it",
        old="        for link in order:\n",
        new="        for link in order[:1]:\n",
    ),
    in_file("src/percola/oracle/relay.py", _RELAY)(
        "relay-answers-more-than-it-has-drawn",
        "Where a call to the oracle brings fewer timestamps than were asked for, some come twice.",
        "test_a_relay_takes_a_token_serves_no_locks_and_ends_connections_that_make_no_sense",
        old="            given = min(one.asked, got)\n",
        new="            given = one.asked\n",
    ),
    in_file("src/percola/oracle/client.py", _RELAY)(
        "relay-that-ended-is-forgotten",
        "A client whose relay did not answer once never asks it again.",
        "test_clients_go_on_with_the_oracles_when_a_relay_ends_and_return_when_it_is_back",
        old="            self._leave()\n            self._at = 0\n",
        new="            pass\n",
    ),
    in_lock_service_server(
        "lock-service-ends-who-answers-pings",
        "A session that is idle is ended although its process answers, and with it its locks.",
        "test_a_session_that_answers_no_ping_is_ended_and_one_that_does_is_kept",
        old="if session.peer.used >= session.pinged:",
        new="if not session.pinged:",
    ),
    in_lock_service_server(
        "lock-service-refuses-above-its-limit",
        "A lock that is not recorded is refused, so that nobody works on that row.",
        f"{_LIMITS}::test_locks_above_the_limit_are_granted_and_not_kept",
        old="            if fits or held is not None:\n",
        new="            if taken := fits or held is not None:\n",
    ),
    in_file("src/percola/cli/metrics_port.py", _METRICS)(
        "metrics-keep-idle-connections",
        "Connections above the limit stay, so that each idle one takes a thread.",
        "test_idle_connections_neither_lock_a_scraper_out_nor_take_a_thread_each",
        old="                oldest.shutdown(socket.SHUT_RDWR)",
        new="                oldest.fileno()",
    ),
    in_file("src/webindex/__main__.py", _EXTRAS)(
        "webindex-exits-with-0-without-its-extra",
        "The command that could not run reports success.",
        "test_webindex_without_its_extra_says_how_to_install_it",
        old="        sys.exit(1)\n",
        new="        sys.exit(0)\n",
    ),
    in_file("tests/support/needs.py", _NOT_RUN)(
        "skips-leave-the-run-green",
        "A run in which tests could not run says so, and ends with exit status 0.",
        "test_a_run_that_lacks_something_fails_and_says_what_and_why",
        old="            session.exitstatus = pytest.ExitCode.TESTS_FAILED\n",
        new="            pass\n",
    ),
    in_file("tests/conftest.py", _NOT_RUN)(
        "tests-inherit-an-ignored-sigint",
        "In the background of a script, Ctrl-C does not reach what tests start.",
        "test_ctrl_c_arrives_where_the_run_was_started_with_sigint_ignored",
        old="    if runs_tests and signal",
        new="    if not runs_tests and signal",
    ),
]
