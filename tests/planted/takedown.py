"""Mistakes in takedown: what is left of removed pages, and what comes back."""

from __future__ import annotations

from tests.planted.planted import Planted

TESTS = "tests/webindex/test_takedown.py::"
DEPENDENCIES = "src/webindex/rendering/dependencies.py"
ERASING = "src/webindex/takedown/erasing.py"
REMOVING = "src/webindex/takedown/removing.py"
REMOVALS = "src/webindex/load/removals.py"
RACE = TESTS + "test_what_a_loader_writes_that_began_before_the_removal_is_erased"
STAGES = TESTS + "test_a_page_is_removed_at_any_stage"
KILLED = TESTS + "test_a_killed_removal_leaves_whole_pages_and_the_same_command_completes_it"
OBSERVERS = TESTS + "test_an_observer_that_has_read_a_page_writes_nothing_after_its_removal"
RESOURCES = TESTS + "test_resources_of_a_removed_host_go_with_their_bodies_unless_shared"
BLOCKED = TESTS + "test_a_blocked_page_does_not_come_back_with_a_later_crawl"
COPY = TESTS + "test_a_page_that_was_a_revisit_of_the_removed_one_keeps_its_copy"

PLANTED = [
    Planted(
        "refused-capture-parsed",
        "A capture whose loader had not seen the removal is parsed.",
        file="src/webindex/observers/parse.py",
        old="        t.notify(tables.erase_due, row)\n        if rules",
        new="        if not rules",
        tests=[RACE],
    ),
    Planted(
        "refused-revisit-settled",
        "A revisit whose loader had not seen the removal stays.",
        file="src/webindex/load/settling.py",
        old="        t.notify(tables.erase_due, row)\n        return",
        new="        return",
        tests=[RACE],
    ),
    Planted(
        "unnamed-report-not-seen",
        "The report of an unknown page that names no original makes nothing due.",
        file="src/webindex/load/transaction.py",
        old="                if self._current is None:\n",
        new="                if self._current is not None:\n",
        tests=[RACE],
    ),
    Planted(
        "refused-resource-kept",
        "A resource whose loader had not seen the removal stays.",
        file="src/webindex/rendering/dependencies.py",
        old="        t.notify(tables.erase_due, row)\n",
        new="        pass\n",
        tests=[
            TESTS + "test_a_resource_that_a_loader_writes_that_began_before_the_removal_is_erased"
        ],
    ),
    Planted(
        "loader-asks-nobody",
        "Loaders load what was removed.",
        file="src/webindex/load/transaction.py",
        old="        if rules.refuses(url, date_text(one.date)):",
        new="        if rules.refuses(url, ''):",
        tests=[TESTS + "test_the_same_crawl_does_not_restore_a_removed_page_and_a_later_one_does"],
    ),
    Planted(
        "block-is-a-removal",
        "A block refuses only what was captured before it.",
        file=REMOVING,
        old="until = None if block else",
        new="until =",
        tests=[BLOCKED],
    ),
    Planted(
        "removal-is-a-block",
        "A page that was removed never comes back.",
        file=REMOVALS,
        old="    return until is None or date <= until",
        new="    return True",
        tests=[TESTS + "test_the_same_crawl_does_not_restore_a_removed_page_and_a_later_one_does"],
    ),
    Planted(
        "block-lost-by-removal",
        "Removing a blocked page again lifts its block.",
        file=REMOVALS,
        old="until = None if known is None or until is None else max(known, until)",
        new="until = until if known is None or until is None else max(known, until)",
        tests=[TESTS + "test_a_removal_without_block_leaves_a_block_in_place"],
    ),
    Planted(
        "removal-ends-before-future-capture",
        "A capture with a date in the future is loaded again.",
        file=REMOVING,
        old='rule["until"] < stored.newest',
        new='rule["until"] > stored.newest',
        tests=[TESTS + "test_a_capture_dated_in_the_future_is_not_restored_by_the_same_crawl"],
    ),
    Planted(
        "absent-cells-not-deleted",
        "Only cells that are there are deleted, so that a slow observer writes others later.",
        file=ERASING,
        old="        t.delete(column, row)\n    for key",
        new="        t.get(column, row) and t.delete(column, row)\n    for key",
        tests=[OBSERVERS],
    ),
    Planted(
        "links-not-taken-back",
        "The links of a removed page still count.",
        file=ERASING,
        old="        invert(t, row)\n",
        new="",
        tests=[TESTS + "test_links_of_a_removed_page_no_longer_count"],
    ),
    Planted(
        "removed-member-of-cluster",
        "A removed page stays in its cluster.",
        file=ERASING,
        old="        join(t, row)\n",
        new="",
        tests=[TESTS + "test_another_page_of_the_cluster_is_elected"],
    ),
    Planted(
        "removed-redirect-still-leads",
        "A removed redirect stays an alias of the page that it led to.",
        file=ERASING,
        old="        resolve(t, row)\n",
        new="",
        tests=[STAGES],
    ),
    Planted(
        "held-by-removed-page",
        "The payload of a removed page is still found by its digest.",
        file=ERASING,
        old="    for payload in {shares(one) for one in gone} - {None}:",
        new="    for payload in {shares(one) for one in gone[:0]} - {None}:",
        tests=[TESTS + "test_a_payload_that_another_page_has_stays_there_for_revisits"],
    ),
    Planted(
        "removed-page-waits",
        "A removed page still waits for originals.",
        file=ERASING,
        old="for one in refused for key in waits_at(one)}\n",
        new="for one in kept for key in waits_at(one)}\n",
        tests=[TESTS + "test_revisits_of_a_removed_page_wait_no_more"],
    ),
    Planted(
        "copies-not-settled",
        "Pages that repeat a removed page do not look for another original.",
        file=ERASING,
        old="            t.notify(tables.wake_due, key)\n",
        new="            pass\n",
        tests=[COPY],
    ),
    Planted(
        "copy-lost",
        "A page that repeats a removed one, by reference, loses its content.",
        file="src/webindex/load/revisits.py",
        old="    if payload is None:\n        return copy",
        new="    if payload is None:\n        return None",
        tests=[COPY],
    ),
    Planted(
        "earlier-captures-kept",
        "Removed captures of a page that was captured again stay.",
        file=ERASING,
        old="    if not refused:\n        return\n    _let",
        new="    if refused:\n        return\n    _let",
        tests=[TESTS + "test_earlier_captures_are_erased_if_a_newer_one_came_in_time"],
    ),
    Planted(
        "body-of-removed-resource",
        "A removed resource still holds its body.",
        file=ERASING,
        old="        let_go(t, resource)\n",
        new="",
        tests=[RESOURCES],
    ),
    Planted(
        "image-of-removed-page",
        "The image of a removed page stays.",
        file=DEPENDENCIES,
        old="    for column in (rendering.about, rendering.image, rendering.thumbnail):",
        new="    for column in (rendering.about,):",
        tests=[RESOURCES],
    ),
    Planted(
        "earlier-images-of-removed-page",
        "The thumbnails of earlier images of a removed page stay.",
        file=DEPENDENCIES,
        old='        for one in about["history"]:',
        new='        for one in about["history"][1:]:',
        tests=[RESOURCES],
    ),
    Planted(
        "uses-of-removed-page",
        "What a browser asked for to show a removed page is still entered as used.",
        file=DEPENDENCIES,
        old='enter_seen(t, about["url"], about["asked"], ())',
        new='enter_seen(t, about["url"], (), ())',
        tests=[RESOURCES],
    ),
    Planted(
        "absent-uses-not-deleted",
        "What a document uses is entered after its removal, by an observer that had read it.",
        file=ERASING,
        old="    t.delete(rendering.entered, row)\n",
        new="",
        tests=[
            TESTS + "test_an_observer_that_has_read_what_a_document_uses_enters_nothing_after_"
            "its_removal"
        ],
    ),
    Planted(
        "scanned-before-removal",
        "Pages that are loaded and processed before the removal, after its snapshot, stay.",
        file=REMOVING,
        old="""    if not dry_run:
        _enter(repo, wanted, block=block)
    # After that, so that it shows what loaders have committed that did not see the removals.
    with repo.snapshot() as now:
""",
        new="""    early = repo.snapshot()
    if not dry_run:
        _enter(repo, wanted, block=block)
    with early as now:
""",
        tests=[
            TESTS + "test_what_is_loaded_and_processed_just_before_the_removal_is_found_by_its_scan"
        ],
    ),
    Planted(
        "half-a-page-a-transaction",
        "The row of a page is deleted in one transaction, and what follows in the next.",
        file=REMOVING,
        old="        erase_refused(t, row, stored)\n",
        new="        for column in (tables.capture, tables.body):\n"
        "            t.delete(column, row)\n",
        tests=[KILLED],
    ),
    Planted(
        "long-prefix-misses-cut-rows",
        "A prefix longer than rows finds nothing.",
        file=REMOVALS,
        old="surt(self.name)[: MAX_ROW_BYTES - _HASH_TAIL",
        new="surt(self.name)[: MAX_ROW_BYTES + _HASH_TAIL",
        tests=[TESTS + "test_a_long_prefix_finds_rows_that_are_cut"],
    ),
    Planted(
        "prefix-covers-its-host",
        "A prefix removes every page of its host.",
        file=REMOVALS,
        old="any(url.startswith(prefix) and",
        new="any(prefix is not None and",
        tests=[TESTS + "test_rules_of_some_urls_decide_as_all_rules_do"],
    ),
    Planted(
        "prefix-normalised-to-a-shorter-one",
        "A prefix is taken in its normalised form, which covers more.",
        file=REMOVALS,
        old='if kind == "prefix" and url not in (text, f"{text}/"):',
        new='if kind == "prefix" and not url:',
        tests=[TESTS + "test_a_mistake_is_one_sentence"],
    ),
    Planted(
        "counted-twice",
        "A page that a URL and its host name is counted for both.",
        file=REMOVING,
        old="        return self.scope_of(scope.name) != scope",
        new="        return False",
        tests=[TESTS + "test_a_dry_run_counts_the_same_and_changes_nothing"],
    ),
    Planted(
        "dead-letters-kept",
        "The traceback of a failure on a removed page stays.",
        file=REMOVING,
        old="        _retry_dead_letters(repo, cover)\n",
        new="",
        tests=[TESTS + "test_dead_letters_of_removed_pages_are_dropped"],
    ),
    Planted(
        "search-not-waited-for",
        "The command returns before running workers have changed search.",
        file=REMOVING,
        old="        if not left or time.monotonic() >= deadline:",
        new="        if left or time.monotonic() >= deadline:",
        tests=[TESTS + "test_remove_waits_until_running_workers_have_changed_search"],
    ),
    Planted(
        "scratch-reads-refused-records",
        "The computation from scratch takes removed records for valid.",
        file="src/webindex/batch/crawl.py",
        old="            if rules.refuses(url, revisits.date_text(record.date)):",
        new="            if rules.refuses(url, ''):",
        tests=[TESTS + "test_the_computation_from_scratch_leaves_out_refused_records"],
    ),
    Planted(
        "scratch-prefers-copies",
        "A copy is preferred to an original that is there.",
        file="src/webindex/batch/crawl.py",
        old="return None if revisits.copy_of(report, capture) is None else 4",
        new="return None if revisits.copy_of(report, capture) is None else -1",
        tests=[
            TESTS + "test_the_computation_from_scratch_takes_a_copy_only_where_no_original_is_left"
        ],
    ),
]
