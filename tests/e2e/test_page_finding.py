"""Finding and moving in the page: search, keys, focus, and what lies where."""

from __future__ import annotations

import pytest
from page_fixtures import Play, ServeFake, in_both


@in_both
def test_a_hit_opens_its_conversation_at_its_message(play: Play, serve_fake: ServeFake) -> None:
    play("finding.hits", serve_fake())


def test_parts_of_words_are_found_where_the_browser_keeps_them(play: Play, serve_fake: ServeFake) -> None:
    play("finding.here", serve_fake("--no-conversations"))


@in_both
def test_a_thousand_conversations_need_no_mouse(play: Play, serve_fake: ServeFake) -> None:
    """Its figures are in docs/page.md; ``-s`` shows them."""
    play("finding.keys", serve_fake())


def test_nothing_lies_on_the_composer(play: Play, serve_fake: ServeFake) -> None:
    play("finding.looks", serve_fake())


def test_a_key_is_kept_for_the_tab(play: Play, serve_fake: ServeFake) -> None:
    play("finding.key", serve_fake("--api-key", "secret"))


@in_both
@pytest.mark.parametrize("kept", [(), ("--no-conversations",)])
def test_the_console_stays_empty(play: Play, serve_fake: ServeFake, kept: tuple[str, ...]) -> None:
    play("finding.quiet", serve_fake(*kept, FAKE_TOKENS="400", FAKE_TOKEN_DELAY="0.05"))
