"""For how long a SuperNode that is to end is let run on."""

from __future__ import annotations

from umbel.clients.finishing import ANSWER_S, NOW_S, Finishing


def test_an_idle_one_ends_at_once() -> None:
    finishing = Finishing()
    assert not finishing.lets(100.0, works=False, now=False)
    assert not finishing.lets(100.5, works=True, now=False)  # an invitation that came meanwhile


def test_a_round_ends_first_and_its_answer_is_handed_in() -> None:
    finishing = Finishing()
    assert all(finishing.lets(100.0 + s, works=True, now=False) for s in range(5000))
    assert finishing.lets(6000.0, works=False, now=False)
    assert finishing.lets(6000.0 + ANSWER_S - 0.1, works=True, now=False)
    assert not finishing.lets(6000.0 + ANSWER_S, works=True, now=False)


def test_what_is_broken_off_has_a_moment_to_say_so() -> None:
    finishing = Finishing()
    assert finishing.lets(100.0, works=True, now=True)
    assert finishing.lets(100.0 + NOW_S - 0.1, works=True, now=True)
    assert not finishing.lets(100.0 + NOW_S, works=True, now=True)
    finishing.anew()
    assert finishing.lets(200.0, works=True, now=True)
    assert finishing.lets(201.0, works=False, now=True)
    assert not finishing.lets(201.0 + ANSWER_S, works=False, now=True)
