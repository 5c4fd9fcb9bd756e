"""The glossary is what docstrings say, and each word is said once."""

from __future__ import annotations

from collections import Counter

import glossary


def test_the_page_is_made_of_docstrings() -> None:
    assert glossary.PAGE.read_text() == glossary.page()


def test_no_word_is_defined_twice() -> None:
    each = [one for word, _ in glossary.words() for one in word.split(", ")]
    assert len(each) >= 60
    assert [word for word, count in Counter(each).items() if count > 1] == []
    assert all(meaning for _, meaning in glossary.words())
