"""Checksums: CRC-32 and XXH3, in plain Python."""

import struct
import zlib

from .fields import CRC32, XXH3, Broken


def checksum(kind, data, seed=0):
    if kind == CRC32:
        return zlib.crc32(data)
    if kind == XXH3:
        return xxh3_64(data, seed)
    raise Broken(f"checksum of kind {kind}")


M64 = (1 << 64) - 1
P32_1, P32_2, P32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
P64_1, P64_2, P64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P64_4, P64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
PM1, PM2 = 0x165667919E3779F9, 0x9FB21C651E98DF25
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)


def _u32(b, at):
    return int.from_bytes(b[at : at + 4], "little")


def _u64(b, at):
    return int.from_bytes(b[at : at + 8], "little")


def _fold(a, b):
    p = a * b
    return (p & M64) ^ (p >> 64)


def _avalanche(h):
    h ^= h >> 37
    h = h * PM1 & M64
    return h ^ h >> 32


def _avalanche64(h):
    h ^= h >> 33
    h = h * P64_2 & M64
    h ^= h >> 29
    h = h * P64_3 & M64
    return h ^ h >> 32


def _swap64(v):
    return int.from_bytes(v.to_bytes(8, "little"), "big")


def _rotate(v, n):
    return (v << n | v >> (64 - n)) & M64


def _mix16(b, at, secret, s, seed):
    return _fold(_u64(b, at) ^ (_u64(secret, s) + seed & M64), _u64(b, at + 8) ^ (_u64(secret, s + 8) - seed & M64))


def xxh3_64(data, seed=0):
    """XXH3_64bits_withSeed."""
    n = len(data)
    if n <= 16:
        return _xxh3_short(data, n, seed)
    if n <= 128:
        h = n * P64_1 & M64
        for i in range((n - 1) // 32, -1, -1):
            h += _mix16(data, 16 * i, SECRET, 32 * i, seed) + _mix16(data, n - 16 * (i + 1), SECRET, 32 * i + 16, seed)
        return _avalanche(h & M64)
    if n <= 240:
        h = n * P64_1 & M64
        for i in range(8):
            h += _mix16(data, 16 * i, SECRET, 16 * i, seed)
        h = _avalanche(h & M64)
        for i in range(8, n // 16):
            h += _mix16(data, 16 * i, SECRET, 16 * (i - 8) + 3, seed)
        h += _mix16(data, n - 16, SECRET, 136 - 17, seed)
        return _avalanche(h & M64)
    return _xxh3_long(data, n, seed)


def _xxh3_short(data, n, seed):
    if n > 8:
        low = _u64(data, 0) ^ ((_u64(SECRET, 24) ^ _u64(SECRET, 32)) + seed & M64)
        high = _u64(data, n - 8) ^ ((_u64(SECRET, 40) ^ _u64(SECRET, 48)) - seed & M64)
        return _avalanche(n + _swap64(low) + high + _fold(low, high) & M64)
    if n >= 4:
        seed ^= int.from_bytes((seed & 0xFFFFFFFF).to_bytes(4, "little"), "big") << 32
        flip = (_u64(SECRET, 8) ^ _u64(SECRET, 16)) - seed & M64
        h = (_u32(data, n - 4) + (_u32(data, 0) << 32)) ^ flip
        h ^= _rotate(h, 49) ^ _rotate(h, 24)
        h = h * PM2 & M64
        h ^= (h >> 35) + n
        h = h * PM2 & M64
        return h ^ h >> 28
    if n > 0:
        mixed = data[0] << 16 | data[n >> 1] << 24 | data[n - 1] | n << 8
        return _avalanche64(mixed ^ ((_u32(SECRET, 0) ^ _u32(SECRET, 4)) + seed & M64))
    return _avalanche64(seed ^ _u64(SECRET, 56) ^ _u64(SECRET, 64))


def _xxh3_long(data, n, seed):
    secret = SECRET
    if seed:
        secret = b"".join(struct.pack("<QQ", _u64(SECRET, i) + seed & M64, _u64(SECRET, i + 8) - seed & M64) for i in range(0, 192, 16))
    acc = [P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1]
    keys = [struct.unpack("<8Q", secret[s : s + 64]) for s in range(0, 192 - 64 + 1, 8)]

    def accumulate(values, key):
        for i in range(8):
            v = values[i]
            k = v ^ key[i]
            acc[i ^ 1] += v
            acc[i] = acc[i] + (k & 0xFFFFFFFF) * (k >> 32)
        for i in range(8):
            acc[i] &= M64

    stripes = (192 - 64) // 8
    block = 64 * stripes
    scramble = struct.unpack("<8Q", secret[128:192])
    last = (n - 1) // block
    for b in range(last + 1):
        for s in range(stripes if b < last else (n - 1 - last * block) // 64):
            accumulate(struct.unpack_from("<8Q", data, b * block + 64 * s), keys[s])
        if b < last:
            for i in range(8):
                acc[i] = (acc[i] ^ acc[i] >> 47 ^ scramble[i]) * P32_1 & M64
    accumulate(struct.unpack_from("<8Q", data, n - 64), struct.unpack("<8Q", secret[192 - 64 - 7 : 192 - 7]))
    h = n * P64_1 & M64
    for i in range(4):
        h += _fold(acc[2 * i] ^ _u64(secret, 11 + 16 * i), acc[2 * i + 1] ^ _u64(secret, 11 + 16 * i + 8))
    return _avalanche(h & M64)
