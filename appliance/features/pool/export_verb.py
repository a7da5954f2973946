"""``pool export``: the boxes of a pool, or this machine alone, as files for SMG, Kubernetes and compose."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from appliance.cli.remote import RequestRefused, RunningServer, ask, server_options
from appliance.errors import UsageError
from appliance.features.pool.core.export import ExportBox, compose_files, export_box, kubernetes_files, smg_files
from appliance.features.pool.core.shapes import PoolState
from appliance.fleet.model_rows import ModelTable
from appliance.platform.console import say

NOT_IN_A_NAME = re.compile(r"[^a-z0-9-]+")


_out_option = click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write the files into this folder, which is made. Without it they are printed.",
)
_image_option = click.option("--image", default="llama-appliance:latest", show_default=True, help="The image to run.")


@click.group()
def export() -> None:
    """Write the boxes of the pool as files for a router or an orchestrator; outside of a pool, this machine alone.

    \b
    Examples:
      llama-appliance pool export smg --out smg
      llama-appliance pool export kubernetes --namespace models --out k8s
    """


@export.command()
@server_options
@click.option("--port", type=click.IntRange(1, 65535), help="The boxes' port for clients. Default: what they tell.")
@click.option("--address", metavar="HOST", help="This machine's address, where it is in no pool. Default: its name.")
@_out_option
async def smg(server: RunningServer, port: int | None, address: str | None, out: Path | None) -> None:
    """Write a list of workers for SMG, one for each model of each box, and the command that starts it.

    SMG reads the list again when it changes: export again when a box or a model comes or goes.

    \b
    Example:
      llama-appliance pool export smg --out smg && smg/smg.sh
    """
    if not (boxes := _open(await _boxes(server, port, address))):
        raise UsageError("no box listens for other machines; 'serve --listen 0.0.0.0:8080 --api-key KEY' starts one")
    if not any(box.models for box in boxes):
        raise UsageError("no box has a model; 'llama-appliance pull MODEL' fetches one")
    _give(smg_files(boxes), out)
    if out is not None:
        (out / "smg.sh").chmod(0o755)


@export.command()
@server_options
@_image_option
@click.option("--namespace", default="default", show_default=True, help="The namespace of all objects.")
@click.option("--allow-host", "hosts", multiple=True, metavar="HOST", help="Also a name of the boxes: of a gateway.")
@_out_option
async def kubernetes(server: RunningServer, image: str, namespace: str, hosts: Sequence[str], out: Path | None) -> None:
    """Write as many boxes as the pool has, as objects of Kubernetes 1.30 or newer. Nothing in them needs root.

    \b
    Example:
      llama-appliance pool export kubernetes --namespace models --out k8s && kubectl apply -k k8s
    """
    _give(kubernetes_files(len(await _boxes(server, None, None)), image, namespace, hosts), out)


@export.command()
@server_options
@_image_option
@_out_option
async def compose(server: RunningServer, image: str, out: Path | None) -> None:
    """Write a file for 'docker compose' or podman-compose, with one service for each box.

    \b
    Example:
      llama-appliance pool export compose --out . && docker compose up
    """
    _give(compose_files(await _boxes(server, None, None), image), out)


async def _boxes(server: RunningServer, port: int | None, address: str | None) -> list[ExportBox]:
    """Ask the server for its pool; without one it is the only box. A box that others cannot reach is left out.

    ``port`` and ``address`` stand for what a proxy makes of the boxes' own.
    """
    try:
        found = await ask(server, "GET", "/api/pool", PoolState)
    except RequestRefused:
        found = PoolState()  # it has no pools, or shows them to nobody
    listed = await ask(server, "GET", "/api/ls", ModelTable)
    own = [model.id for model in listed.models if model.source != "server" and model.error is None]
    if found.pool is None:
        name = address or socket.gethostname()
        named = NOT_IN_A_NAME.sub("-", name.lower()).strip("-") or "box"
        return [export_box(named, name, found.listen, port, own, is_fixed=address is not None)]
    reached = [box for box in found.boxes if box.addresses and not box.dials_out]
    if left_out := [box.name for box in found.boxes if box not in reached]:
        say(f"left out, because others cannot connect to them: {', '.join(left_out)}")
    return [
        export_box(box.name, box.addresses[0], box.listen, port, own if box.me else [model.id for model in box.models])
        for box in reached
    ]


def _open(boxes: Sequence[ExportBox]) -> list[ExportBox]:
    """Return the boxes that another machine reaches; of several, one that only its own machine reaches is left out."""
    for box in boxes:
        if not box.listen:
            say(f"{box.name} does not tell where its API listens, so {box.url} is taken for it")
        elif box.closed:
            what = f"left out: {box.name}" if len(boxes) > 1 else box.name
            fix = f"'serve --listen 0.0.0.0:{box.port} --api-key KEY' there opens it"
            say(f"{what} listens at {box.listen} alone, which no other machine reaches; {fix}")
    return [box for box in boxes if len(boxes) == 1 or not box.closed]


def _give(files: Mapping[str, str], out: Path | None) -> None:
    if out is None:
        for name, text in files.items():
            click.echo(f"# ---- {name}\n{text}")
        return
    out.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (out / name).write_text(text, "utf-8")
    say(f"{out}: {', '.join(files)}")
