"""Fetches a model from boxes, as a process that can be killed: ``fetch_program.py FOLDER MODEL FILES URL...``."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import trio

from appliance.catalog.downloads import DownloadSettings, open_downloads
from appliance.core.models.blobs import HashedFile
from appliance.upstream.address import address_of


async def main(folder: str, model: str, files: str, *urls: str) -> None:
    settings = DownloadSettings(cache=Path(folder) / "cache", models_dir=Path(folder) / "models", spare=0)
    async with open_downloads(settings) as downloads:
        members = [address_of(url, url, api_key="sesame") for url in urls]
        download = await downloads.fetch_from(members, msgspec.json.decode(files, type=list[HashedFile]), model)
        status = await download.wait()
    if status.state != "finished":
        sys.exit(status.error)


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
