"""Trees of files, which stand for those of a machine."""

from __future__ import annotations

from pathlib import Path


def write(root: Path, files: dict[str, str]) -> Path:
    """Write the files below the root, and return it."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def card(
    root: Path, pci: str, vendor: str, device: str, driver: str = "", *, kind: str = "0x030000", **files: str
) -> Path:
    """A card on the bus, with what its driver says of it: ``__`` in a name stands for a slash."""
    folder = root / "sys/bus/pci/devices" / pci
    folder.mkdir(parents=True)
    for name, text in {"class": kind, "vendor": vendor, "device": device, **files}.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    if driver:
        (folder / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")
    return folder
