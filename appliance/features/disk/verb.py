"""``disk``: the room that models, downloads and folders take on the disks of the machine that runs the server."""

from __future__ import annotations

import click

from appliance.cli.remote import RunningServer, ask, server_options
from appliance.cli.show import human_size, json_option, print_json, print_table
from appliance.core.models.download_status import DownloadStatus
from appliance.core.quantities import span
from appliance.features.disk.rules import DiskTable, ModelSpace

DISKS = ("DISK", "TOTAL", "FREE", "OTHER")
FOLDERS = ("FOLDER", "SIZE", "FILES", "PATH")
DOWNLOADS = ("DOWNLOAD", "STATE", "DONE", "OF", "SPEED", "LEFT")
MODELS = ("MODEL", "SIZE", "FREES", "LAST USED")


@click.command()
@server_options
@json_option
async def disk(server: RunningServer, as_json: bool) -> int:
    """Show what takes room on the disks of the machine that runs the server: folders, downloads, models.

    A model's removal frees what no other model shares; - means that it cannot be removed.

    \b
    Examples:
      llama-appliance disk
      llama-appliance disk --json
    """
    table = await ask(server, "GET", "/api/disk", DiskTable)
    if as_json:
        print_json(table)
        return 0
    disks = [(one.path, *map(human_size, (one.total, one.free, one.other))) for one in table.disks]
    print_table(DISKS, disks, right=DISKS[1:])
    click.echo()
    folders = [(one.kind, human_size(one.bytes), str(one.files), one.path) for one in table.folders]
    print_table(FOLDERS, folders, right=FOLDERS[1:3])
    downloads = [_cells(one) for one in table.downloads]
    downloads += [
        (one.model, "unfinished", human_size(one.done), human_size(one.total), "-", "-") for one in table.unfinished
    ]
    if downloads:
        click.echo()
        print_table(DOWNLOADS, downloads, right=DOWNLOADS[2:])
    if table.models:
        click.echo()
        print_table(MODELS, [_model_cells(one) for one in table.models], right=MODELS[1:3])
    return 0


def _cells(one: DownloadStatus) -> tuple[str, ...]:
    state = f"queued, place {one.place}" if one.place else one.state
    speed = f"{human_size(round(one.speed))}/s" if one.speed is not None else "-"
    left = span(one.left) if one.left is not None else "-"
    return (one.model, state, human_size(one.done), human_size(one.total), speed, left)


def _model_cells(model: ModelSpace) -> tuple[str, ...]:
    frees = "-" if model.why else human_size(model.frees)
    used = f"{model.last_used.astimezone():%Y-%m-%d %H:%M}" if model.last_used else "-"
    return (model.model, human_size(model.size), frees, used)
