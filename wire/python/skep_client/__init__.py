"""A client of a skep server, written from docs/reference/protocol.md alone, with nothing but
Python's standard library. It is meant to be read: one connection, one call at a time
(but restores are sessions), checksums in plain Python.

    with Client("127.0.0.1:7001", token="...") as c:
        ns = c.open_namespace(tenant=c.tenant, name="chat", kind=0, block_tokens=16)
        c.put(ns["id"], [Block(key, [("kv", payload)])])
        found = c.lookup(ns["id"], [key])
        for chunk in c.restore([Chain(ns["id"], [key], lease=found["lease"])]):
            chunk.data  # bytes, compared with what was computed when they were put
"""

from .connection import *
from .fields import *
from .messages import *
from .sums import *
