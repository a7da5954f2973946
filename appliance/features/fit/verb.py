"""``memory``: what lies where in the machine's memory, and what one more model would push out."""

from __future__ import annotations

from urllib.parse import quote

import click

from appliance.cli.remote import RunningServer, ask, server_options
from appliance.cli.show import human_size, json_option, print_json, print_table
from appliance.features.fit.core.picture import LoadForecast, MemoryShare, MemoryTable

COLUMNS = ("DEVICE", "NAME", "TOTAL", "FREE", "OTHER PROGRAMS", "MODELS")
SHARES = ("DEVICE", "MODEL", "STATE", "MEMORY", "WEIGHTS", "CONTEXT", "COMPUTE", "REST")
FITS = {"fits": "It fits.", "partly": "It fits in part.", "no": "It does not fit."}


@click.command()
@click.argument("model", required=False)
@server_options
@json_option
async def memory(server: RunningServer, model: str | None, as_json: bool) -> int:
    """Show the memory of the machine that runs the server, and the models in it.

    With MODEL, say what loading it would stop, how long that would take, and whether it fits. Nothing is loaded.

    \b
    Examples:
      llama-appliance memory
      llama-appliance memory starter
    """
    path = "/api/memory" if model is None else f"/api/memory?model={quote(model, safe='')}"
    table = await ask(server, "GET", path, MemoryTable)
    if as_json:
        print_json(table)
        return 0
    rows = list[tuple[str, ...]]()
    for one in table.devices:
        sizes = (one.total, one.free, one.other, sum(share.total for share in one.models))
        rows.append((one.device, one.name or "-", *map(human_size, sizes)))
    print_table(COLUMNS, rows, right=COLUMNS[2:])
    if shares := [(one.device, *_cells(share)) for one in table.devices for share in one.models]:
        click.echo()
        print_table(SHARES, shares, right=SHARES[3:])
    if table.load is not None:
        click.echo(f"\n{_in_words(table.load)}")
    return 0


def _cells(share: MemoryShare) -> tuple[str, ...]:
    parts = (share.weights, share.context, share.compute, share.rest)
    return (share.model, share.state, human_size(share.total), *(human_size(part) if part else "-" for part in parts))


def _in_words(load: LoadForecast) -> str:
    """Return the forecast as sentences."""
    if load.refused:
        return f"{load.model} would be refused now: {load.why}"
    takes = ", ".join(f"{human_size(size)} of {device}" for device, size in load.takes.items() if size)
    if load.state in ("loaded", "sleeping"):
        return f"{load.model} is {load.state} and takes {takes or 'no memory that is known'}."
    said = [f"{load.model} would take {takes or 'no memory that is known'}."]
    if load.fits is not None:
        said.append(f"{FITS[load.fits]} {load.why[:1].upper()}{load.why[1:]}.".replace("..", "."))
    said.append(f"It would stop {', '.join(load.goes)}." if load.goes else "No model has to go.")
    if load.held:
        said.append(f"It would wait for {', '.join(load.held)}, in use or loaded just now.")
    if load.before:
        said.append(f"Before it, {', '.join(load.before)} would load.")
    known = load.expected is not None
    said.append(f"Loading would take about {load.expected:.1f} s." if known else "Its time to load is not known yet.")
    return "\n".join(said)
