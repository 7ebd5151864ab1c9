"""skepkv: the KV store skep from Python, on its C library.

    import skepkv
    with skepkv.connect("unix:/run/skep/skep.sock") as store:
        space = store.namespace("blocks")
        keys = [skepkv.key(b"one"), skepkv.key(b"two")]
        space.put(keys, [b"first", b"second"])
        into = [bytearray(5), bytearray(6)]
        assert space.restore(keys, into)

A miss is no exception: it is in what a call returns. What a server that is gone does to a call is SkepError 24, unless
the store was opened with strict=False: then nothing is found there.
"""

from __future__ import annotations

import hashlib
from typing import Any, Mapping

from . import errors
from ._events import Event, Events
from ._library import library, socket_of
from ._queue import Done, Queue
from ._store import Found, Lease, Memory, Registered, Restored, Space, Store, Stored
from ._structured import Paged, Shape, Writer
from .errors import Forked, Invalid, NotReleased, SkepError

__all__ = [
    "Done",
    "Event",
    "Events",
    "Forked",
    "Found",
    "Invalid",
    "Lease",
    "Memory",
    "NotReleased",
    "Paged",
    "Queue",
    "Registered",
    "Restored",
    "Shape",
    "SkepError",
    "Space",
    "Store",
    "Stored",
    "Writer",
    "connect",
    "embed",
    "key",
    "version",
]


def connect(
    url: str,
    *,
    token: str = "",
    tls: str | Mapping[str, str] | None = None,
    shared_bytes: int | None = None,
    lazy: bool = False,
    strict: bool = True,
) -> Store:
    """Opens a server's store: url is `unix:/path` or `host:port`, or several of a cluster's nodes with commas between
    them, of which those that are away are passed over: a path has no comma. tls is the file of who signs the servers'
    certificates, "system" for whom the system trusts, or a mapping with `ca`, `cert`, `key` and `name`, all optional.
    Over a Unix socket shared_bytes (256 MiB unless it says otherwise) of memory are shared with the server. A lazy
    store connects with its first call."""
    if shared_bytes is None:
        shared_bytes = 256 << 20 if socket_of(url) else 0
    how: dict[str, Any] = {"connect": url, "token": token, "shared_bytes": shared_bytes, "lazy": lazy, "strict": strict}
    if isinstance(tls, str):
        how["tls"] = {} if tls == "system" else {"ca": tls}
    elif tls is not None:
        how["tls"] = dict(tls)
    return Store(how)


def embed(
    dir: str,
    *,
    devices: int = 0,
    capacity_bytes: int = 0,
    dram_bytes: int = 0,
    bucket: Mapping[str, Any] | None = None,
) -> Store:
    """Opens a store in this process, in a directory, and makes it where there is none. 0 is what the store has, or a
    default. bucket puts object storage behind the drives: the settings `bucket` of skep serve's configuration, of which
    `endpoint`, `bucket` and `key_file` are needed; sizes are bytes or "10TiB", times "30s". What is wrong with one is
    Invalid, and says which."""
    how: dict[str, Any] = {"dir": dir, "devices": devices, "capacity_bytes": capacity_bytes, "dram_bytes": dram_bytes}
    if bucket is not None:
        how["bucket"] = dict(bucket)
    return Store(how)


def key(*names: bytes) -> bytes:
    """A key of 32 bytes for names of any length: a SHA-256 over the names and their lengths."""
    h = hashlib.sha256()
    for name in names:
        h.update(len(name).to_bytes(8, "little"))
        h.update(name)
    return h.digest()


def version() -> int:
    """The SKEP_VERSION of the library."""
    return library().version


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import metadata

    try:
        return metadata.version("skepkv")  # the programs' of the same commit
    except metadata.PackageNotFoundError:
        return "0.0.0.dev0"  # not installed: it runs from the source
