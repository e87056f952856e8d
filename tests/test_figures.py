"""Sizes and times as people read them."""

from __future__ import annotations

import pytest

from umbel.host.figures import day, moment, nearest, size


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1_550_000, "1.6 MB"),
        (7 * 10**9, "7.0 GB"),
        (3 * 10**15, "3000.0 TB"),
    ],
)
def test_a_size_has_the_decimal_unit_that_fits(nbytes: int, text: str) -> None:
    assert size(nbytes) == text


def test_times_are_utc_to_the_day_and_to_the_minute() -> None:
    at = 951_827_696.0  # 2000-02-29 12:34:56 UTC, by `date -u -d @951827696`
    assert (day(at), moment(at)) == ("2000-02-29", "2000-02-29 12:34 UTC")


def test_a_key_that_nobody_knows_is_near_one_or_none() -> None:
    known = {"cohort", "clients", "deadline"}
    assert nearest("cohortt", known) == "perhaps cohort"
    assert not nearest("xyz", known)
