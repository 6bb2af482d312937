"""Mistakes in takedown: what is left of removed pages, and what comes back."""

from tests.planted.planted import in_file

_TESTS = "tests/webindex/test_takedown.py"
in_transaction = in_file("src/webindex/load/transaction.py", _TESTS)
in_dependencies = in_file("src/webindex/rendering/dependencies.py", _TESTS)
in_removing = in_file("src/webindex/takedown/removing.py", _TESTS)
in_removals = in_file("src/webindex/load/removals.py", _TESTS)
in_erasing = in_file("src/webindex/takedown/erasing.py", _TESTS)
in_crawl = in_file("src/webindex/batch/crawl.py", _TESTS)

PLANTED = [
    in_file("src/webindex/observers/parse.py", _TESTS)(
        "refused-capture-parsed",
        "A capture whose loader had not seen the removal is parsed.",
        "test_what_a_loader_writes_that_began_before_the_removal_is_erased",
        old="        t.notify(tables.erase_due, row)\n        if rules",
        new="        if not rules",
    ),
    in_file("src/webindex/load/settling.py", _TESTS)(
        "refused-revisit-settled",
        "A revisit whose loader had not seen the removal stays.",
        "test_what_a_loader_writes_that_began_before_the_removal_is_erased",
        old="        t.notify(tables.erase_due, row)\n        return",
        new="        return",
    ),
    in_transaction(
        "unnamed-report-not-seen",
        "The report of an unknown page that names no original makes nothing due.",
        "test_what_a_loader_writes_that_began_before_the_removal_is_erased",
        old="                if self._current is None:\n",
        new="                if self._current is not None:\n",
    ),
    in_dependencies(
        "refused-resource-kept",
        "A resource whose loader had not seen the removal stays.",
        "test_a_resource_that_a_loader_writes_that_began_before_the_removal_is_erased",
        old="        t.notify(tables.erase_due, row)\n",
        new="        pass\n",
    ),
    in_transaction(
        "loader-asks-nobody",
        "Loaders load what was removed.",
        "test_the_same_crawl_does_not_restore_a_removed_page_and_a_later_one_does",
        old="        if rules.refuses(url, date_text(one.date)):",
        new="        if rules.refuses(url, ''):",
    ),
    in_removing(
        "block-is-a-removal",
        "A block refuses only what was captured before it.",
        "test_a_blocked_page_does_not_come_back_with_a_later_crawl",
        old="until = None if block else",
        new="until =",
    ),
    in_removals(
        "removal-is-a-block",
        "A page that was removed never comes back.",
        "test_the_same_crawl_does_not_restore_a_removed_page_and_a_later_one_does",
        old="    return until is None or date <= until",
        new="    return True",
    ),
    in_removals(
        "block-lost-by-removal",
        "Removing a blocked page again lifts its block.",
        "test_a_removal_without_block_leaves_a_block_in_place",
        old="until = None if known is None or until is None else max(known, until)",
        new="until = until if known is None or until is None else max(known, until)",
    ),
    in_removing(
        "removal-ends-before-future-capture",
        "A capture with a date in the future is loaded again.",
        "test_a_capture_dated_in_the_future_is_not_restored_by_the_same_crawl",
        old='rule["until"] < stored.newest',
        new='rule["until"] > stored.newest',
    ),
    in_erasing(
        "absent-cells-not-deleted",
        "Only cells that are there are deleted, so that a slow observer writes others later.",
        "test_an_observer_that_has_read_a_page_writes_nothing_after_its_removal",
        old="        t.delete(column, row)\n    for key",
        new="        t.get(column, row) and t.delete(column, row)\n    for key",
    ),
    in_erasing(
        "links-not-taken-back",
        "The links of a removed page still count.",
        "test_a_removed_page_is_found_by_no_search_and_named_in_no_table",
        old="        invert(t, row)\n",
        new="",
    ),
    in_erasing(
        "removed-member-of-cluster",
        "A removed page stays in its cluster.",
        "test_another_page_of_the_cluster_is_elected",
        old="        join(t, row)\n",
        new="",
    ),
    in_erasing(
        "removed-redirect-still-leads",
        "A removed redirect stays an alias of the page that it led to.",
        "test_a_page_is_removed_at_any_stage",
        old="        resolve(t, row)\n",
        new="",
    ),
    in_erasing(
        "held-by-removed-page",
        "The payload of a removed page is still found by its digest.",
        "test_a_payload_that_another_page_has_stays_there_for_revisits",
        old="    for payload in {shares(one) for one in gone} - {None}:",
        new="    for payload in {shares(one) for one in gone[:0]} - {None}:",
    ),
    in_erasing(
        "removed-page-waits",
        "A removed page still waits for originals.",
        "test_revisits_of_a_removed_page_wait_no_more",
        old="for one in refused for key in waits_at(one)}\n",
        new="for one in kept for key in waits_at(one)}\n",
    ),
    in_erasing(
        "copies-not-settled",
        "Pages that repeat a removed page do not look for another original.",
        "test_a_page_that_was_a_revisit_of_the_removed_one_keeps_its_copy",
        old="            t.notify(tables.wake_due, key)\n",
        new="            pass\n",
    ),
    in_file("src/webindex/load/revisits.py", _TESTS)(
        "copy-lost",
        "A page that repeats a removed one, by reference, loses its content.",
        "test_a_page_that_was_a_revisit_of_the_removed_one_keeps_its_copy",
        old="    if payload is None:\n        return copy",
        new="    if payload is None:\n        return None",
    ),
    in_erasing(
        "earlier-captures-kept",
        "Removed captures of a page that was captured again stay.",
        "test_earlier_captures_are_erased_if_a_newer_one_came_in_time",
        old="    if not refused:\n        return\n    _let",
        new="    if refused:\n        return\n    _let",
    ),
    in_erasing(
        "body-of-removed-resource",
        "A removed resource still holds its body.",
        "test_resources_of_a_removed_host_go_with_their_bodies_unless_shared",
        old="        let_go(t, resource)\n",
        new="",
    ),
    in_dependencies(
        "image-of-removed-page",
        "The image of a removed page stays.",
        "test_resources_of_a_removed_host_go_with_their_bodies_unless_shared",
        old="    for column in (rendering.about, rendering.image, rendering.thumbnail):",
        new="    for column in (rendering.about,):",
    ),
    in_dependencies(
        "earlier-images-of-removed-page",
        "The thumbnails of earlier images of a removed page stay.",
        "test_resources_of_a_removed_host_go_with_their_bodies_unless_shared",
        old='        for one in about["history"]:',
        new='        for one in about["history"][1:]:',
    ),
    in_dependencies(
        "uses-of-removed-page",
        "What a browser asked for to show a removed page is still entered as used.",
        "test_resources_of_a_removed_host_go_with_their_bodies_unless_shared",
        old='enter_seen(t, about["url"], about["asked"], ())',
        new='enter_seen(t, about["url"], (), ())',
    ),
    in_erasing(
        "absent-uses-not-deleted",
        "What a document uses is entered after its removal, by an observer that had read it.",
        "test_an_observer_that_has_read_what_a_document_uses_enters_nothing_after_its_removal",
        old="    t.delete(rendering.entered, row)\n",
        new="",
    ),
    in_removing(
        "scanned-before-removal",
        "Pages that are loaded and processed before the removal, after its snapshot, stay.",
        "test_what_is_loaded_and_processed_just_before_the_removal_is_found_by_its_scan",
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
    ),
    in_removing(
        "half-a-page-a-transaction",
        "The row of a page is deleted in one transaction, and what follows in the next.",
        "test_a_killed_removal_leaves_whole_pages_and_the_same_command_completes_it",
        old="        erase_refused(t, row, stored)\n",
        new="        for column in (tables.capture, tables.body):\n"
        "            t.delete(column, row)\n",
    ),
    in_removals(
        "long-prefix-misses-cut-rows",
        "A prefix longer than rows finds nothing.",
        "test_a_long_prefix_finds_rows_that_are_cut",
        old="surt(self.name)[: MAX_ROW_BYTES - _HASH_TAIL",
        new="surt(self.name)[: MAX_ROW_BYTES + _HASH_TAIL",
    ),
    in_removals(
        "prefix-covers-its-host",
        "A prefix removes every page of its host.",
        "test_rules_of_some_urls_decide_as_all_rules_do",
        old="any(url.startswith(prefix) and",
        new="any(prefix is not None and",
    ),
    in_removals(
        "prefix-normalised-to-a-shorter-one",
        "A prefix is taken in its normalised form, which covers more.",
        "test_a_mistake_is_one_sentence",
        old='if kind == "prefix" and url not in (text, f"{text}/"):',
        new='if kind == "prefix" and not url:',
    ),
    in_removing(
        "counted-twice",
        "A page that a URL and its host name is counted for both.",
        "test_a_dry_run_counts_the_same_and_changes_nothing",
        old="        return self.scope_of(scope.name) != scope",
        new="        return False",
    ),
    in_removing(
        "dead-letters-kept",
        "The traceback of a failure on a removed page stays.",
        "test_dead_letters_of_removed_pages_are_dropped",
        old="        _retry_dead_letters(repo, cover)\n",
        new="",
    ),
    in_removing(
        "search-not-waited-for",
        "The command returns before running workers have changed search.",
        "test_remove_waits_until_running_workers_have_changed_search",
        old="        if not left or time.monotonic() >= deadline:",
        new="        if left or time.monotonic() >= deadline:",
    ),
    in_crawl(
        "scratch-reads-refused-records",
        "The computation from scratch takes removed records for valid.",
        "test_the_computation_from_scratch_leaves_out_refused_records",
        old="            if rules.refuses(url, revisits.date_text(record.date)):",
        new="            if rules.refuses(url, ''):",
    ),
    in_crawl(
        "scratch-prefers-copies",
        "A copy is preferred to an original that is there.",
        "test_the_computation_from_scratch_takes_a_copy_only_where_no_original_is_left",
        old="return None if revisits.copy_of(report, capture) is None else 4",
        new="return None if revisits.copy_of(report, capture) is None else -1",
    ),
]
