"""An edit over HTTP: what is shown of a file, the effects of an edit, and the edit itself. It waits for the disk."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from appliance.core.config.nodes import Problem
from appliance.core.config.types import Config
from appliance.errors import EditRefused, InvalidConfig
from appliance.features.config_editing.core import remote_edits
from appliance.features.config_editing.core.asked import ConfigCheck, ConfigEdit
from appliance.features.config_editing.core.masks import MaskedText, masked
from appliance.features.config_editing.core.splices import difference, with_value
from appliance.features.config_editing.editor import ConfigEditor, OpenedText


class ConfigFields(Struct, frozen=True, kw_only=True):
    """The fields of the two forms."""

    program: Sequence[remote_edits.FormField]
    model: Sequence[remote_edits.FormField]


class ConfigShown(Struct, frozen=True, kw_only=True):
    """``GET /api/config``: one file. ``fixed`` says why it cannot be edited here; empty: it can."""

    file: str
    files: list[str]
    text: str
    version: str
    fixed: str
    fields: ConfigFields
    values: remote_edits.FormValues


class CheckedEdit(Struct, frozen=True, kw_only=True):
    """The effects of an edit. ``refused`` are changes that are not for HTTP, ``changed`` models whose process ends."""

    text: str
    version: str
    values: remote_edits.FormValues
    problems: Sequence[Problem]
    refused: Sequence[Problem]
    difference: str
    changed: Sequence[str] = ()


def hidden_in(editor: ConfigEditor, opened: OpenedText) -> MaskedText:
    return masked(opened.text, editor.beside(opened.file), editor.config_type)


def shown(editor: ConfigEditor, file: str | None) -> ConfigShown:
    opened = editor.open(file)
    text = hidden_in(editor, opened).text
    return ConfigShown(
        file=opened.file,
        files=editor.names(),
        text=text,
        version=opened.version,
        fixed=opened.fixed,
        fields=ConfigFields(program=remote_edits.program_fields(), model=remote_edits.model_fields()),
        values=remote_edits.form_values(text),
    )


def checked(editor: ConfigEditor, asked: ConfigCheck) -> tuple[CheckedEdit, Config | None]:
    """The effects of an edit, but for the models; and the configuration that it makes, if it makes one."""
    now = editor.open(asked.file)
    hidden = hidden_in(editor, now)
    text = hidden.text if asked.text is None else asked.text
    for edit in asked.set:
        text = with_value(text, edit.path, edit.value)
    problems: Sequence[Problem] = ()
    refused: Sequence[Problem] = ()
    config: Config | None = None
    try:
        if not (refused := remote_edits.refusals(hidden.text, text, now.file, editor.config_type)):
            loaded = editor.check(now.file, hidden.revealed(text))
            problems, config = loaded.problems, loaded.config
    except InvalidConfig as error:
        problems = [problem for problem in error.problems if isinstance(problem, Problem)]
    checked = CheckedEdit(
        text=text,
        version=now.version,
        values=remote_edits.form_values(text),
        problems=problems,
        refused=refused,
        difference=difference(hidden.text, text),
    )
    return checked, config


def written(editor: ConfigEditor, asked: ConfigEdit) -> OpenedText:
    def edit(now: OpenedText) -> str:
        hidden = hidden_in(editor, now)
        if found := remote_edits.refusals(hidden.text, asked.text, now.file, editor.config_type):
            raise EditRefused(found)
        return hidden.revealed(asked.text)

    return editor.write(editor.open(asked.file).file, asked.version, edit)
