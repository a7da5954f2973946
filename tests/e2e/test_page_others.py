"""Word documents, exports of other programs, and several conversations at once: `tests/web/scenarios/others.mjs`."""

from __future__ import annotations

import zipfile
from pathlib import Path

from page_fixtures import Play, ServeFake, in_both

WORDS = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


@in_both
def test_a_word_document_is_read(play: Play, serve_fake: ServeFake, tmp_path: Path) -> None:
    body = (
        '<w:p><w:pPr><w:outlineLvl w:val="0"/></w:pPr><w:r><w:t>Zebra</w:t></w:r></w:p>'
        "<w:p><w:r><w:t>Grüße</w:t></w:r></w:p>"
    )
    with zipfile.ZipFile(tmp_path / "paper.docx", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("word/document.xml", f'<w:document xmlns:w="{WORDS}">{body}</w:document>')
    play("others.documents", serve_fake(FAKE_SCRIPT='[{"echo": true}]'), str(tmp_path / "paper.docx"))


def test_several_conversations_are_saved_and_deleted(play: Play, serve_fake: ServeFake) -> None:
    play("others.several", serve_fake())
