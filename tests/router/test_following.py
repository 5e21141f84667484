"""Which requests a draft keeps up with."""

from __future__ import annotations

from router.following import Following


def test_a_request_that_begins_where_no_tree_is_asked_is_followed_once_one_is() -> None:
    following = Following(shares_host=False)
    following.start("late", 0.0, asks=False)
    assert not following.follows("late")
    assert following.revise([("late", False)], 5.0) == []
    assert following.revise([("late", True)], 6.0) == ["late"]
    assert following.follows("late")


def test_on_one_host_a_draft_lets_go_of_what_it_is_not_asked_about_for_a_while() -> None:
    following = Following(shares_host=True)
    following.start("idle", 0.0, asks=True)
    following.start("asked", 0.0, asks=True)
    assert following.revise([("idle", False), ("asked", True)], 0.2) == []
    assert following.revise([("idle", False), ("asked", True)], 0.3) == ["idle"]
    assert (following.follows("idle"), following.follows("asked")) == (False, True)


def test_a_draft_elsewhere_stays_warm() -> None:
    following = Following(shares_host=False)
    following.start("idle", 0.0, asks=True)
    assert following.revise([("idle", False)], 100.0) == []
    assert following.follows("idle")
    following.end("idle")
    assert not following.follows("idle")
