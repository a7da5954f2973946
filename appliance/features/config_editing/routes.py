"""``/api/config``: the configuration's text, an edit of it checked and written, and its earlier versions.

All of it is off without ``serve --admin``. Secrets are marks here, and an edit changes only what `core.remote_edits`
allows. The file is read for each request: an editor on the machine may have changed it. The first request for the text
imports what edits it, which takes 2 MB.
"""

from __future__ import annotations

import trio
from msgspec import structs
from quart import Response, request

from appliance.core.parameters import read_whole
from appliance.errors import UsageError
from appliance.features.config_editing.core.asked import ConfigCheck, ConfigEdit
from appliance.features.config_editing.editor import FOLDER, ConfigEditor, TextChanged
from appliance.http.control.answers import json_answer, read_as
from appliance.http.control.routes import Routes
from appliance.http.errors import describe
from appliance.http.kernel import Kernel
from appliance.http.route_facts import AdminDoor, RouteFacts


def config_routes(kernel: Kernel) -> Routes:
    owners, routes = kernel.owners, Routes("config_editing")
    editor = ConfigEditor(kernel.files, kernel.data / FOLDER) if kernel.files is not None else None

    def editing() -> ConfigEditor:
        """Raises UsageError."""
        if editor is None:
            raise UsageError("the program runs without a configuration file; start it with --config FILE")
        return editor

    @routes.get("/api/config", facts=RouteFacts(admin=_door("show")))
    async def show() -> Response:
        from appliance.features.config_editing import edits

        return json_answer(await trio.to_thread.run_sync(edits.shown, editing(), request.args.get("file")))

    @routes.post("/api/config/check", facts=RouteFacts(takes=ConfigCheck, admin=_door("edit")))
    async def check() -> Response:
        from appliance.features.config_editing import edits

        editor, asked = editing(), await read_as(ConfigCheck)
        checked, config = await trio.to_thread.run_sync(edits.checked, editor, asked)
        if config is not None:
            changed = owners.fleet.outdated(owners.catalog.models_with(config))
            checked = structs.replace(checked, changed=changed)
        return json_answer(checked)

    @routes.put("/api/config", facts=RouteFacts(takes=ConfigEdit, admin=_door("edit")))
    async def write() -> Response:
        """Write an edit, and put it in force."""
        from appliance.features.config_editing import edits

        editor, asked = editing(), await read_as(ConfigEdit)
        try:
            written = await trio.to_thread.run_sync(edits.written, editor, asked)
        except TextChanged as error:
            found = error.now
            now = await trio.to_thread.run_sync(edits.hidden_in, editor, found)
            texts = {"text": now.text, "version": found.version, "yours": asked.text}
            return json_answer({"error": describe(error), **texts}, 409)
        if owners.configuration is not None:
            await owners.configuration.wait_read()
        done = await owners.reloads.reload()
        warnings = [str(warning) for warning in done.warnings]
        return json_answer({"version": written.version, "warnings": warnings, "changed": done.changed})

    @routes.get("/api/config/versions", facts=RouteFacts(admin=_door("versions")))
    async def versions() -> Response:
        editor, file = editing(), request.args.get("file")
        kept = await trio.to_thread.run_sync(lambda: editor.kept(editor.open(file).file).list())
        return json_answer({"versions": kept})

    @routes.get("/api/config/versions/<number>", facts=RouteFacts(admin=_door("versions")))
    async def version(number: str) -> Response:
        editor, file, which = editing(), request.args.get("file"), read_whole(number, "version")

        def read() -> str:
            from appliance.features.config_editing.core.masks import masked

            now = editor.open(file)
            others = [now.text, *editor.beside(now.file)]
            return masked(editor.earlier(which, now.file), others, editor.config_type).text

        return json_answer({"number": which, "text": await trio.to_thread.run_sync(read)})

    return routes


def _door(verb: str) -> AdminDoor:
    return AdminDoor("the configuration", f"config {verb}")
