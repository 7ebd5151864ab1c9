"""libskep by ctypes: its functions, its structures, and memory of Python's objects."""

from __future__ import annotations

import ctypes as c
import functools
import os
from typing import Any, Sequence

from . import errors

KEY = 32
_WANTED = 9  # the least SKEP_VERSION of a library that this package works with
PIECES = 10  # the one from which on a queue's calls take blocks in pieces
LAYERS = 11  # and the one from which on they restore some layers
PAGED_LAYERS = 12  # and the one from which on restores into a paged cache do


class Error(c.Structure):
    _fields_ = [("code", c.c_int32), ("message", c.c_char * 252)]


class Scope(c.Structure):
    _fields_ = [("namespace_id", c.c_uint32), ("salt_bytes", c.c_uint32), ("salt", c.c_char_p)]


class Hints(c.Structure):
    _fields_ = [
        ("pin_ms", c.c_int64),
        ("next_use_ms", c.c_int64),
        ("ttl_ms", c.c_int64),
        ("steps", c.c_int32),
        ("drop", c.c_int32),
        ("program", c.c_char_p),
    ]


class EventStruct(c.Structure):
    _fields_ = [
        ("epoch", c.c_uint64),
        ("seq", c.c_uint64),
        ("unix_ns", c.c_int64),
        ("lost", c.c_uint64),
        ("namespace", c.c_uint32),
        ("depth", c.c_uint32),
        ("kind", c.c_uint8),
        ("tier", c.c_uint8),
        ("reason", c.c_uint8),
        ("salted", c.c_uint8),
        ("has_parent", c.c_uint8),
        ("zero", c.c_uint8 * 3),
        ("key", c.c_uint8 * KEY),
        ("parent", c.c_uint8 * KEY),
    ]


class OpStruct(c.Structure):
    _fields_ = [
        ("size", c.c_uint32),
        ("what", c.c_uint32),
        ("tag", c.c_uint64),
        ("scope", c.POINTER(Scope)),
        ("keys", c.c_char_p),
        ("parent", c.c_char_p),
        ("n", c.c_uint32),
        ("depth", c.c_uint32),
        ("blocks", c.c_void_p),
        ("lengths", c.c_void_p),
        ("lease", c.c_uint64),
        ("lease_ms", c.c_int64),
        ("bytes", c.c_int64),
        ("timeout_ms", c.c_int64),
        ("future", c.POINTER(Hints)),
        ("results", c.c_void_p),
        ("reasons", c.c_void_p),
        ("pieces", c.c_void_p),  # from here on of version 10
        ("part", c.c_char_p),
        ("dest", c.c_void_p),
        ("stream", c.c_uint64),
        ("writer", c.c_uint64),
        ("parts", c.c_void_p),
        ("offset", c.c_int64),
        ("from_", c.c_uint32),
        ("to", c.c_uint32),
    ]


class PartStruct(c.Structure):
    _fields_ = [("name", c.c_char_p), ("bytes", c.c_int64)]


class PagedStruct(c.Structure):
    _fields_ = [
        ("order", c.c_uint32),
        ("where", c.c_uint32),
        ("layers", c.c_uint32),
        ("page_tokens", c.c_uint32),
        ("page_stride", c.c_int64),
        ("plane_bytes", c.c_int64),
        ("k", c.POINTER(c.c_uint64)),
        ("v", c.POINTER(c.c_uint64)),
        ("slots", c.POINTER(c.c_int64)),
    ]


class DoneStruct(c.Structure):
    _fields_ = [
        ("tag", c.c_uint64),
        ("code", c.c_int32),
        ("what", c.c_uint32),
        ("blocks", c.c_int64),
        ("tokens", c.c_int64),
        ("bytes", c.c_int64),
        ("lease", c.c_uint64),
        ("message", c.c_char * 80),
    ]


class FoundStruct(c.Structure):
    _fields_ = [("blocks", c.c_int64), ("tokens", c.c_int64), ("bytes", c.c_int64), ("lease", c.c_uint64)]


def socket_of(url: str) -> str:
    """The path of the Unix socket among a cluster's addresses, by which memory is shared; "": there is none."""
    sockets = (a.strip() for a in url.split(","))
    return next((a.removeprefix("unix:") for a in sockets if a.startswith("unix:")), "")


def path() -> str:
    """Where the library is: SKEPKV_LIBRARY, else beside this package."""
    return os.environ.get("SKEPKV_LIBRARY") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "libskep.so.1")


# What the functions take, in front of the error.
_u8p, _scope = c.POINTER(c.c_uint8), c.POINTER(Scope)
_pointers, _lengths = c.POINTER(c.c_void_p), c.POINTER(c.c_int64)
_CALLS: dict[str, tuple] = {
    "open": (c.c_char_p, c.POINTER(c.c_uint64)),
    "close": (c.c_uint64,),
    "namespace_within": (c.c_uint64, c.c_char_p, c.c_int64, c.POINTER(c.c_uint32)),
    "lookup_within": (
        c.c_uint64,
        _scope,
        c.c_char_p,
        c.c_uint32,
        c.c_int64,
        c.c_int64,
        c.POINTER(FoundStruct),
    ),
    "lookup_each": (
        c.c_uint64,
        _scope,
        c.c_char_p,
        c.c_uint32,
        c.c_int64,
        c.c_int64,
        _u8p,
        c.POINTER(c.c_uint64),
    ),
    "renew": (c.c_uint64, c.c_uint64, c.c_int64),
    "release": (c.c_uint64, c.c_uint64),
    "exists": (c.c_uint64, _scope, c.c_char_p, c.c_uint32, c.c_int64, _u8p),
    "load": (c.c_uint64, _scope, c.c_char_p, c.c_uint32, c.c_uint64, _pointers, _lengths, c.c_int64, _u8p),
    "save": (
        c.c_uint64,
        _scope,
        c.c_char_p,
        c.c_uint32,
        c.c_char_p,
        c.c_uint32,
        _pointers,
        _lengths,
        c.c_int64,
        _u8p,
        _u8p,
    ),
    "begin": (
        c.c_uint64,
        _scope,
        c.c_char_p,
        c.c_uint32,
        c.c_char_p,
        c.POINTER(PartStruct),
        c.c_uint32,
        c.c_int64,
        c.POINTER(c.c_uint64),
    ),
    "write": (c.c_uint64, c.c_char_p, c.c_int64, c.c_void_p, c.c_int64, c.c_int64),
    "commit": (c.c_uint64, c.c_int, c.c_int64, _u8p, _u8p),
    "abort": (c.c_uint64,),
    "load_part": (
        c.c_uint64,
        _scope,
        c.c_char_p,
        c.c_char_p,
        c.c_uint32,
        c.c_uint64,
        _pointers,
        _lengths,
        c.c_int64,
        _u8p,
    ),
    "restore": (
        c.c_uint64,
        _scope,
        c.c_char_p,
        c.c_uint32,
        c.c_uint32,
        c.c_uint32,
        c.POINTER(PagedStruct),
        c.c_uint64,
        c.c_int64,
        c.POINTER(c.c_uint32),
    ),
    "flush": (c.c_uint64, c.c_int64),
    "want": (c.c_uint64, _scope, c.c_char_p, c.c_uint32, c.c_int64, c.c_int64, _u8p, _u8p),
    "delete": (c.c_uint64, _scope, c.c_char_p, c.c_uint32, c.c_int64, c.POINTER(c.c_uint32)),
    "hint": (c.c_uint64, _scope, c.c_char_p, c.c_uint32, c.POINTER(Hints), c.c_int64, c.POINTER(c.c_uint32)),
    "purge": (c.c_uint64, c.c_char_p, c.c_char_p, _scope, c.c_int64),
    "list": (
        c.c_uint64,
        c.c_uint32,
        c.POINTER(c.c_uint64),
        c.c_void_p,
        c.c_uint32,
        c.c_int64,
        c.POINTER(c.c_uint32),
    ),
    "stats": (c.c_uint64, c.c_int64, c.c_char_p, c.c_uint64, c.POINTER(c.c_uint64)),
    "events_open": (c.c_uint64, c.c_uint64, c.c_uint64, c.c_int, c.POINTER(c.c_uint64)),
    "events_next": (c.c_uint64, c.c_int64, c.c_void_p, c.c_uint32, c.POINTER(c.c_uint32)),
    "events_close": (c.c_uint64,),
    "queue_open": (c.c_uint64, c.c_uint32, c.POINTER(c.c_uint64), c.POINTER(c.c_int)),
    "submit": (c.c_uint64, c.POINTER(OpStruct), c.c_uint32, c.POINTER(c.c_uint32)),
    "drain": (c.c_uint64, c.POINTER(DoneStruct), c.c_uint32, c.POINTER(c.c_uint32)),
    "queue_close": (c.c_uint64, c.c_int64),
    "direct": (c.c_uint64, c.c_int64),
    "shared_alloc": (c.c_uint64, c.c_int64, _pointers, c.POINTER(c.c_int), c.POINTER(c.c_int64)),
    "shared_free": (c.c_uint64, c.c_void_p),
    "mem_register": (c.c_uint64, c.c_void_p, c.c_int64, c.c_int, c.c_int64, c.c_int64),
    "mem_unregister": (c.c_uint64, c.c_void_p, c.c_int64),
}


_CALLS["save_accepted"] = _CALLS["save"]
_CALLS["restore_layers"] = (*_CALLS["restore"][:6], c.c_uint32, c.c_uint32, *_CALLS["restore"][6:])


class Library:
    """The library, loaded once a process."""

    def __init__(self) -> None:
        self.path = path()
        try:
            self._lib = c.CDLL(self.path)
            self.version = int(self._lib.skep_version())
        except (OSError, AttributeError) as e:
            raise ImportError(f"skepkv: {self.path} is no libskep of version {_WANTED} or later: {e}") from e
        if self.version < _WANTED:
            raise ImportError(f"skepkv: {self.path} has version {self.version}, {_WANTED} is needed")
        self._calls = {}
        for name, takes in _CALLS.items():
            if name == "restore_layers" and self.version < PAGED_LAYERS:
                continue
            f = getattr(self._lib, "skep_" + name)
            f.argtypes, f.restype = (*takes, c.POINTER(Error)), c.c_int
            self._calls[name] = f

    def forked(self) -> bool:
        """Whether this process is forked from the one that loaded the library."""
        return bool(self._lib.skep_forked())

    def call(self, name: str, *args: Any) -> None:
        """Calls a function and raises what it says."""
        err = Error()
        if self._calls[name](*args, c.byref(err)):
            errors.raise_for(err.code, err.message.decode(errors="replace"), self.forked())


_loaded: Library | None = None


def library() -> Library:
    global _loaded
    if _loaded is None:
        _loaded = Library()
    return _loaded


def layers_of(layers: tuple[int, int] | None) -> tuple[int, int]:
    """Layers of a restore, as the library has them; 0 and 0: all."""
    if layers is None:
        return 0, 0
    first, last = layers
    if not 0 <= first < last < 1 << 32:
        raise ValueError(f"layers are {first} to {last}, must be one or more, from 0 on")
    return first, last


def takes(what: str, version: int) -> None:
    """Unsupported: the library is of an older version."""
    if library().version < version:
        why = f"{what}: the library has version {library().version}, {version} is needed"
        raise errors.SkepError(errors.UNSUPPORTED, why)


def named(part: str) -> bytes:
    """A part's name, which C ends with a 0."""
    if "\0" in part:
        raise ValueError(f"part is {part!r}, must have no 0 byte")
    return part.encode()


def joined(keys: Any) -> bytes:
    """Keys as one buffer: they are given as one, or as a sequence of 32 bytes each."""
    if isinstance(keys, (bytes, bytearray, memoryview)):
        out = bytes(keys)
        if len(out) % KEY:
            raise ValueError(f"keys are {len(out)} bytes, which is no multiple of {KEY}")
        return out
    keys = [bytes(k) for k in keys]
    for i, k in enumerate(keys):
        if len(k) != KEY:
            raise ValueError(f"key {i} has {len(k)} bytes, must be {KEY}")
    return b"".join(keys)


def _ms(seconds: float | None) -> int:
    if seconds is None:
        return 0
    if not seconds > 0:
        raise ValueError(f"timeout is {seconds} s, must be more than 0")
    return max(1, int(seconds * 1000))


class _PyBuffer(c.Structure):
    """Py_buffer, the same in every CPython."""

    _fields_ = [
        ("buf", c.c_void_p),
        ("obj", c.c_void_p),
        ("len", c.c_ssize_t),
        ("itemsize", c.c_ssize_t),
        ("readonly", c.c_int),
        ("ndim", c.c_int),
        ("format", c.c_void_p),
        ("shape", c.c_void_p),
        ("strides", c.c_void_p),
        ("suboffsets", c.c_void_p),
        ("internal", c.c_void_p),
    ]


_get = c.pythonapi.PyObject_GetBuffer
_get.argtypes, _get.restype = (c.py_object, c.POINTER(_PyBuffer), c.c_int), c.c_int
_let_go = c.pythonapi.PyBuffer_Release
_let_go.argtypes, _let_go.restype = (c.POINTER(_PyBuffer),), None
_SIMPLE, _WRITABLE = 0, 1  # a simple buffer is C-contiguous


@functools.lru_cache(maxsize=None)
def array(kind: Any, n: int) -> Any:
    """The type of an array, which ctypes keeps for ever: one of each length."""
    return kind * n


def in_pieces(blocks: Any) -> bool:
    """Whether a block is given as a list or a tuple of its pieces."""
    return isinstance(blocks, Placed) or any(isinstance(b, (list, tuple)) for b in blocks)


def held_of(blocks: Any, writable: bool) -> "Held":
    return blocks if isinstance(blocks, Held) else Held(blocks, writable)


def _filled(pieces: Sequence[Any]) -> Sequence[Any]:
    """A block's pieces without those of no bytes, but for one."""
    empty = [len(p) == 0 if isinstance(p, (bytes, bytearray)) else getattr(p, "nbytes", 1) == 0 for p in pieces]
    return [p for p, no in zip(pieces, empty) if not no] or pieces[:1]


class Held:
    """Memory of Python objects, where the library can use it, until it is released. Of blocks in pieces addresses and
    lengths are those of all pieces, and pieces says how many each block has."""

    def __init__(self, objects: Sequence[Any], writable: bool) -> None:
        self.count = len(objects)
        self.pieces: Any = None
        flat, of = objects, range(len(objects))
        if in_pieces(objects):
            each = [_filled(o) if isinstance(o, (list, tuple)) else () if o is None else (o,) for o in objects]
            for i, o in enumerate(each):
                if not o and objects[i] is not None:
                    raise ValueError(f"block {i} has no pieces")
            self.pieces = array(c.c_uint32, self.count)(*map(len, each))
            flat, of = [p for o in each for p in o], [i for i, o in enumerate(each) for _ in o]
        n = len(flat)
        self.addresses, self.lengths = array(c.c_void_p, n)(), array(c.c_int64, n)()
        self._views: list[_PyBuffer] = []
        try:
            for i, o in enumerate(flat):
                if o is None and self.pieces is None:  # no place
                    continue
                view = _PyBuffer()
                try:
                    _get(o, c.byref(view), _WRITABLE if writable else _SIMPLE)
                except (BufferError, TypeError, ValueError) as e:
                    raise type(e)(f"block {of[i]}: {e}") from None
                self._views.append(view)
                self.addresses[i], self.lengths[i] = view.buf, view.len
        except BaseException:
            self.release()
            raise

    def __len__(self) -> int:
        return self.count

    def release(self) -> None:
        for view in self._views:
            _let_go(c.byref(view))
        self._views = []


class Placed(Held):
    """Blocks in pieces at (address, bytes) each, of memory that somebody else holds. Leading ones of none are as
    None."""

    def __init__(self, blocks: Sequence[Sequence[tuple[int, int]]]) -> None:
        flat = [piece for block in blocks for piece in block]
        self.count, self._views = len(blocks), []
        self.pieces = array(c.c_uint32, self.count)(*map(len, blocks))
        self.addresses = array(c.c_void_p, len(flat))(*(address for address, _ in flat))
        self.lengths = array(c.c_int64, len(flat))(*(n for _, n in flat))
