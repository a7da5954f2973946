"""``/api/config``: the configuration's text, an edit of it checked and written, and its earlier versions.

All of it is off without ``serve --admin``. Secrets are marks here, and an edit changes only what `core.remote_edits`
allows. The file is read for each request: an editor on the machine may have changed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import trio
from msgspec import Meta, Struct, structs
from quart import Response, request

from appliance.core.config.nodes import Problem
from appliance.core.config.types import Config
from appliance.core.parameters import read_whole
from appliance.errors import AdminOff, EditRefused, InvalidConfig, UsageError
from appliance.features.config_editing.core import remote_edits
from appliance.features.config_editing.core.masks import MaskedText, masked
from appliance.features.config_editing.core.splices import Setting, difference, with_value
from appliance.features.config_editing.editor import FOLDER, ConfigEditor, OpenedText, TextChanged
from appliance.http.control.answers import json_answer, read_as
from appliance.http.control.routes import RouteFacts, Routes
from appliance.http.errors import describe
from appliance.http.kernel import Kernel


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


class FieldEdit(Struct, frozen=True):
    """Another value for one key; null takes the key out."""

    path: Annotated[list[str], Meta(min_length=1)]
    value: Setting


class ConfigCheck(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of ``POST /api/config/check``: a text, without one the file's, and values of a form that are put into it."""

    file: str | None = None
    text: str | None = None
    set: tuple[FieldEdit, ...] = ()


class CheckedEdit(Struct, frozen=True, kw_only=True):
    """The effects of an edit. ``refused`` are changes that are not for HTTP, ``changed`` models whose process ends."""

    text: str
    version: str
    values: remote_edits.FormValues
    problems: Sequence[Problem]
    refused: Sequence[Problem]
    difference: str
    changed: Sequence[str] = ()


class ConfigEdit(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of ``PUT /api/config``. ``version`` is that of the file on which the edit was begun."""

    text: str
    version: str
    file: str | None = None


def config_routes(kernel: Kernel) -> Routes:
    owners, routes = kernel.owners, Routes("config_editing")
    editor = ConfigEditor(kernel.files, kernel.data / FOLDER) if kernel.files is not None else None

    def editing(verb: str) -> ConfigEditor:
        """Raises AdminOff, UsageError."""
        if not kernel.settings.admin:
            raise AdminOff("the configuration", f"config {verb}")
        if editor is None:
            raise UsageError("the program runs without a configuration file; start it with --config FILE")
        return editor

    @routes.get("/api/config")
    async def show() -> Response:
        return json_answer(await trio.to_thread.run_sync(_shown, editing("show"), request.args.get("file")))

    @routes.post("/api/config/check", facts=RouteFacts(takes=ConfigCheck))
    async def check() -> Response:
        editor, asked = editing("edit"), await read_as(ConfigCheck)
        checked, config = await trio.to_thread.run_sync(_checked, editor, asked)
        if config is not None:
            changed = owners.fleet.outdated(owners.catalog.models_with(config))
            checked = structs.replace(checked, changed=changed)
        return json_answer(checked)

    @routes.put("/api/config", facts=RouteFacts(takes=ConfigEdit))
    async def write() -> Response:
        """Write an edit, and put it in force."""
        editor, asked = editing("edit"), await read_as(ConfigEdit)
        try:
            written = await trio.to_thread.run_sync(_written, editor, asked)
        except TextChanged as error:
            found = error.now
            now = await trio.to_thread.run_sync(_hidden, editor, found)
            texts = {"text": now.text, "version": found.version, "yours": asked.text}
            return json_answer({"error": describe(error), **texts}, 409)
        if owners.configuration is not None:
            await owners.configuration.wait_read()
        done = await owners.reloads.reload()
        warnings = [str(warning) for warning in done.warnings]
        return json_answer({"version": written.version, "warnings": warnings, "changed": done.changed})

    @routes.get("/api/config/versions")
    async def versions() -> Response:
        editor, file = editing("versions"), request.args.get("file")
        kept = await trio.to_thread.run_sync(lambda: editor.kept(editor.open(file).file).list())
        return json_answer({"versions": kept})

    @routes.get("/api/config/versions/<number>")
    async def version(number: str) -> Response:
        editor, file, which = editing("versions"), request.args.get("file"), read_whole(number, "version")

        def read() -> str:
            now = editor.open(file)
            return masked(editor.earlier(which, now.file), [now.text, *editor.beside(now.file)]).text

        return json_answer({"number": which, "text": await trio.to_thread.run_sync(read)})

    return routes


def _hidden(editor: ConfigEditor, opened: OpenedText) -> MaskedText:
    return masked(opened.text, editor.beside(opened.file))


def _shown(editor: ConfigEditor, file: str | None) -> ConfigShown:
    opened = editor.open(file)
    text = _hidden(editor, opened).text
    return ConfigShown(
        file=opened.file,
        files=editor.names(),
        text=text,
        version=opened.version,
        fixed=opened.fixed,
        fields=ConfigFields(program=remote_edits.program_fields(), model=remote_edits.model_fields()),
        values=remote_edits.form_values(text),
    )


def _checked(editor: ConfigEditor, asked: ConfigCheck) -> tuple[CheckedEdit, Config | None]:
    """The effects of an edit, but for the models; and the configuration that it makes, if it makes one."""
    now = editor.open(asked.file)
    hidden = _hidden(editor, now)
    text = hidden.text if asked.text is None else asked.text
    for edit in asked.set:
        text = with_value(text, edit.path, edit.value)
    problems: Sequence[Problem] = ()
    refused: Sequence[Problem] = ()
    config: Config | None = None
    try:
        if not (refused := remote_edits.refusals(hidden.text, text, now.file)):
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


def _written(editor: ConfigEditor, asked: ConfigEdit) -> OpenedText:
    def edit(now: OpenedText) -> str:
        hidden = _hidden(editor, now)
        if found := remote_edits.refusals(hidden.text, asked.text, now.file):
            raise EditRefused(found)
        return hidden.revealed(asked.text)

    return editor.write(editor.open(asked.file).file, asked.version, edit)
