"""The file of a pool: its secret, this box's name, the roster. Its presence means that the program is in a pool."""

from __future__ import annotations

import secrets
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import trio
from msgspec import Struct
from msgspec.structs import replace

from appliance.core.lenient_json import UNREADABLE
from appliance.errors import Conflict, StoreFailed
from appliance.features.pool.core.keys import BoxCertificate, PoolKeys
from appliance.features.pool.core.roster import Box, Roster, newer, refusal
from appliance.store.model_files import read_start, write_whole
from appliance.trio_parts import Changed

VERSION = 1
MAX_SIZE = 4 << 20  # bytes: more than the largest roster, and `lease.MOST_MODELS` names and numbers


class KeptPool(Struct, frozen=True, kw_only=True):
    """The membership of one box; the roster has the addresses and the port of its own door."""

    version: int = VERSION
    secret: bytes  # 32 bytes, from which all keys follow
    me: str
    roster: Roster
    chosen: bool = False  # a person has named this box's addresses: they stay, whatever the machine's own are
    epochs: Mapping[str, int] = {}  # the highest epoch that was seen of each model's placement


def read_pool(path: Path) -> KeptPool | None:
    """Return what the file says; None: there is none. Waits for the disk.

    Raises StoreFailed for one that cannot be used: to go on without it would leave the pool in silence.
    """
    try:
        kept = msgspec.json.decode(read_start(path, MAX_SIZE), type=KeptPool)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreFailed(f"{path}, which holds this box's pool, cannot be read: {error.strerror or error}") from None
    except (*UNREADABLE, ValueError) as error:
        why, fix = f"is damaged ({error})", "remove it to leave the pool, and join again"
    else:
        if kept.version == VERSION and kept.roster.box(kept.me) is not None:
            return kept
        why, fix = "is from another version of llama-appliance", "upgrade, or remove it to leave the pool"
    raise StoreFailed(f"{path}, which holds this box's pool, {why}; {fix}")


def write_pool(path: Path, kept: KeptPool) -> None:
    """Replace the file, which this user alone can read. Raises StoreFailed, also where it could not be read again."""
    try:
        data = msgspec.json.encode(kept)
        if len(data) > MAX_SIZE:
            raise ValueError(f"it would have {len(data)} bytes")
        msgspec.json.decode(data, type=KeptPool)
        write_whole(path, data, private=True)
    except (*UNREADABLE, ValueError) as error:
        raise StoreFailed(f"{path} is not written, for it could not be read again: {error}") from None
    except OSError as error:
        raise StoreFailed(f"{path} cannot be written: {error.strerror or error}") from None


class PoolHere:
    """The pool as this box knows it. Its file has what is in force before anybody is answered."""

    def __init__(self, path: Path, kept: KeptPool) -> None:
        self.kept = kept
        self.me = kept.me
        self.over = trio.Event()  # this box has left, or the others have removed it
        self.changed = Changed()  # wakes after every change of the roster or of the secret
        self._path = path
        self._seed = secrets.token_bytes(32)  # the private key of this run's certificate
        self._writing = trio.Lock()

    @property
    def roster(self) -> Roster:
        return self.kept.roster

    @property
    def keys(self) -> PoolKeys:
        return PoolKeys(self.kept.secret)

    @property
    def own(self) -> Box | None:
        """This box; None once the roster lacks it."""
        return self.roster.box(self.me)

    @property
    def others(self) -> list[Box]:
        return [box for box in self.roster.boxes if box.name != self.me]

    def own_certificate(self) -> BoxCertificate:
        """This run's certificate, for every address of this box, loopback, and its name."""
        addresses = self.own.addresses if self.own is not None else ()
        return self.keys.issue(self.me, tuple(dict.fromkeys((*addresses, "127.0.0.1", "::1"))), self._seed)

    async def learn(self, roster: Roster) -> Roster:
        """Take a newer roster; return the one in force. Raises StoreFailed, and Conflict for one of another pool."""
        if why := refusal(self.roster, roster, time.time()):
            raise Conflict(why)
        if newer(self.roster, roster) != self.roster:
            if roster.box(self.me) is None:
                self.over.set()
            self.kept = replace(self.kept, roster=roster)
            self.changed.wake()
            await self._keep()
        return self.roster

    async def _keep(self) -> None:
        """Write what is in force by then. Raises StoreFailed."""
        async with self._writing:
            if not self.over.is_set():  # else the file is about to go
                await trio.to_thread.run_sync(write_pool, self._path, self.kept)


@contextmanager
def certificate_files(own: BoxCertificate) -> Generator[tuple[str, str]]:
    """Have the certificate and its key in files while the block runs, because Python's ssl reads from files only.

    They are readable by this user alone, and the key is good for one run of the program. Raises StoreFailed.
    """
    with ExitStack() as kept:
        try:
            folder = Path(kept.enter_context(TemporaryDirectory()))
            files = folder / "certificate.pem", folder / "key.pem"
            files[0].write_text(own.certificate)
            files[1].write_text(own.key)
        except OSError as error:
            raise StoreFailed(f"the certificate of this box cannot be written: {error.strerror or error}") from None
        yield str(files[0]), str(files[1])
