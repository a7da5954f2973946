"""The settings in config.json; README.md explains each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance.plugins import Refused

OWN_FOLDER = "documents"
"""The folder for documents in the plugin's data folder, used if none is set."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    documents: Sequence[str] = ()
    exclude: Sequence[str] = ("node_modules", "__pycache__")
    embedding_model: str = ""
    chunk_chars: int = 1200
    overlap_chars: int = 150
    batch: int = 16
    top_k: int = 5
    min_score: float = 0.2
    context_chars: int = 6000
    index_seconds: float = 20.0
    max_chunks: int = 20_000
    max_file_mb: float = 10.0
    footer: bool = True

    def __post_init__(self) -> None:
        for name in ("batch", "top_k", "max_chunks"):
            if getattr(self, name) < 1:
                raise ValueError(f"'{name}' must be 1 or more")
        if self.chunk_chars < 100:
            raise ValueError("'chunk_chars' must be 100 or more")
        if not 0 <= self.overlap_chars <= self.chunk_chars // 2:
            raise ValueError("'overlap_chars' must be 0 or more, and at most half of 'chunk_chars'")

    @property
    def recipe(self) -> str:
        """The recipe that makes chunks of files; chunks made by another recipe are made again."""
        return f"1 {self.chunk_chars} {self.overlap_chars} {self.max_file_mb:g}"

    def places(self, data: Path) -> list[Path]:
        """Return the folders and files of documents. Raises Refused if one is missing: its passages must not be
        dropped.
        """
        own = data / OWN_FOLDER
        if not self.documents:
            own.mkdir(exist_ok=True)
            return [own]
        places = [(data / Path(entry).expanduser()).resolve() for entry in self.documents]
        for place in places:
            if not place.exists():
                raise Refused(f"there is no {place}, which 'documents' in the plugin's settings names")
        return places
