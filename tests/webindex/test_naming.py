"""What a page is called, by its title and by the texts of links to it."""

from __future__ import annotations

import pytest

from webindex.serving.naming import is_navigation, names, telling
from webindex.serving.query import parse_query


@pytest.mark.parametrize(
    ("title", "called"),
    [
        ("8.15. Arrays", ["Arrays"]),
        ("Chapter 12. Full Text Search", ["Full Text Search"]),
        ("Part II. The SQL Language", ["The SQL Language"]),
        ("F.12. dblink", ["dblink"]),
        ("csv — CSV Files — Python 3.11 documentation", ["csv", "csv — CSV Files"]),
        ("3. A tour - Manual | Example", ["A tour", "3. A tour", "A tour - Manual"]),
        ("errno: error numbers", ["errno"]),
        ("Sub-commands of a.b", []),
        ("Node.js 18. What is new", []),
        ("", []),
    ],
)
def test_a_title_names_its_page_without_its_number_and_its_site(
    title: str, called: list[str]
) -> None:
    found = names(title)
    assert found[:1] == ([title] if title else [])
    assert set(called) <= set(found)
    assert all(name in title for name in found)
    assert called or found == [title][: len(title)]


@pytest.mark.parametrize(
    "text", ["Home", " Up ", "next »", "pt-br", "«", "12", "¶", "Zurück", "次へ"]
)
def test_links_that_only_lead_somewhere_tell_nothing(text: str) -> None:
    assert is_navigation(text)
    assert telling([(text, 9), ("Herons", 1)]) == (("Herons", 1),)


@pytest.mark.parametrize("text", ["Home automation", "Upgrading", "8.15. Arrays", "C"])
def test_other_links_do(text: str) -> None:
    assert not is_navigation(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("pg_dump", "pg_dump"),
        ("PG_Dump()", "pg_dump"),
        ("$HOME", "$home"),
        ("utf8", "utf8"),
        ("2024", None),
        ("word", None),
        ("a.b_c", None),
        ('"pg_dump"', None),
    ],
)
def test_a_name_has_letters_and_a_digit_an_underscore_or_a_dollar_sign(
    text: str, name: str | None
) -> None:
    assert parse_query(text)[0].name == name
