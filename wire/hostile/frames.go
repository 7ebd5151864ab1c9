package hostile

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/skepkv/skep/wire/frames"
)

var le = binary.LittleEndian

// body is a frame's, built field by field as docs/reference/protocol.md has it.
type body []byte

func (b body) u8(v ...uint8) body   { return append(b, v...) }
func (b body) u16(v uint16) body    { return le.AppendUint16(b, v) }
func (b body) u32(v uint32) body    { return le.AppendUint32(b, v) }
func (b body) u64(v ...uint64) body { return each(b, v, le.AppendUint64) }
func (b body) i64(v ...int64) body {
	return each(b, v, func(b []byte, n int64) []byte { return le.AppendUint64(b, uint64(n)) })
}
func (b body) text(s string) body    { return append(b.u16(uint16(len(s))), s...) }
func (b body) bytes(p []byte) body   { return append(b.u32(uint32(len(p))), p...) }
func (b body) key(n int) body        { k := keyOf(n); return append(b, k[:]...) }
func (b body) scope(ns uint32) body  { return b.u32(ns).text("") }
func (b body) flag(set bool) body    { return b.u8(map[bool]uint8{true: 1}[set]) }
func (b body) keys(from, n int) body { return eachKey(b.u32(uint32(n)), from, n) }

func each[T any](b body, list []T, add func([]byte, T) []byte) body {
	for _, v := range list {
		b = add(b, v)
	}
	return b
}

func eachKey(b body, from, n int) body {
	for i := range n {
		b = b.key(from + i)
	}
	return b
}

func keyOf(n int) (k [32]byte) {
	copy(k[:], "key of a hostile client ")
	strconv.AppendInt(k[:24], int64(n), 10)
	return k
}

// frame is a whole one, with checksums that are right.
func frame(t frames.Type, call uint64, b body, payload []byte) []byte {
	h := frames.Header{Version: frames.Version, Type: t, Call: call, Body: uint32(len(b)),
		Payload: uint32(len(payload)), BodySum: crc32.ChecksumIEEE(b)}
	return append(append(h.Append(nil), b...), payload...)
}

// sign puts right checksums, and often right lengths, on what was a frame before it was mutated, so that what it says
// is looked at.
func sign(r *rand.Rand, f []byte) []byte {
	if len(f) < frames.HeaderSize {
		return f
	}
	h := frames.Header{Version: f[4], Type: frames.Type(f[5]), Flags: le.Uint16(f[6:]), Call: le.Uint64(f[8:]),
		Body: le.Uint32(f[16:]), Payload: le.Uint32(f[20:]), Deadline: le.Uint32(f[24:]), Epoch: le.Uint32(f[32:])}
	if r.IntN(4) == 0 { // by a map of a cluster: the server's, an older one, a newer one
		h.Epoch = uint32(oddNumber(r)) >> (r.IntN(2) * 28)
	}
	rest := f[frames.HeaderSize:]
	if r.IntN(8) > 0 {
		h.Version = frames.Version
	}
	if int64(h.Body)+int64(h.Payload) != int64(len(rest)) && r.IntN(4) > 0 {
		h.Body = min(h.Body, uint32(len(rest)))
		h.Payload = uint32(len(rest)) - h.Body
	}
	h.BodySum = crc32.ChecksumIEEE(rest[:min(int(h.Body), len(rest))])
	return append(h.Append(nil), rest...)
}

// hello is the first frame of a client.
func hello(token string, client byte) []byte {
	var id [16]byte
	id[0], id[1] = 'h', client
	b := append(body{}.u8(1, 1).u32(7|frames.FeatureEpoch), id[:]...)
	return frame(frames.TypeHello, 0, b.text("hostile").text(token), nil)
}

// putOf is a put of blocks of size bytes: in the payload, or at random places in shared memory.
func putOf(r *rand.Rand, ns uint32, size, shared int) (body, []byte) {
	n, first := 1+r.IntN(8), r.IntN(2)*r.IntN(64)
	var payload []byte
	b := body{}.scope(ns).u8(0).i64(0).u8(uint8(r.IntN(2))).u32(uint32(n))
	for i := range n {
		b = b.key(first + i).i64(0).u8(0).bytes(nil).u32(1).text("kv").u64(uint64(size))
		if shared > 0 {
			b = b.u8(0).u64(0).flag(true).u64(uint64(r.IntN(shared)))
			continue
		}
		p := make([]byte, size)
		for i := range p {
			p[i] = byte(i)
		}
		payload = append(payload, p...)
		b = b.u8(1).u64(uint64(crc32.ChecksumIEEE(p))).flag(false).u64(0)
	}
	return b, payload
}

// aim is where a chain of a restore goes.
type aim struct {
	to     uint8 // 0 the payload, 1 memory, 2 pages
	offset uint64
	length uint64
	stride int64
}

// restoreOf asks for a chain of n keys.
func restoreOf(r *rand.Rand, ns uint32, window uint64, ring bool, n int, aims ...aim) body {
	b := body{}.u64(window).flag(ring).u32(uint32(len(aims)))
	for _, a := range aims {
		b = b.scope(ns).text("").u8(uint8(r.IntN(2 + r.IntN(4)))).u64(uint64(r.IntN(40))).i64(int64(r.IntN(3))).i64(int64(r.IntN(2)) * int64(1+r.IntN(1<<30)))
		b = b.i64(0, 0, 0, 0, 0, 0).u8(a.to)
		switch a.to {
		case 1:
			b = b.u64(a.offset, a.length).i64(a.stride)
		case 2:
			b = b.u8(uint8(r.IntN(2))).i64(a.stride).u32(4).u64(a.offset, a.length, a.offset+uint64(a.stride), a.length, 0, a.length, a.offset, a.length).u32(uint32(n))
			for i := range n {
				b = b.i64(int64(r.IntN(i + 1)))
			}
		}
		b = b.keys(0, n)
	}
	return b
}

// openSpace asks for a namespace of the hostile tenant, or of another.
func openSpace(r *rand.Rand, name string) body {
	tenant := HostileTenant
	if r.IntN(6) == 0 {
		tenant = HonestTenant
	}
	return body{}.text(tenant).text(name).text("").u8(0, 0, 0).i64(0, 0, 0, 1, 0).u8(uint8(r.IntN(2))).i64(int64(r.IntN(2))).flag(false)
}

func timeUpTo(r *rand.Rand, ms int) time.Duration {
	return time.Duration(r.IntN(ms)) * time.Millisecond
}

// aSpace is the number of a namespace: mostly of the hostile tenant's two, else an honest client's or nobody's.
func (t *Target) aSpace(ctx context.Context, r *rand.Rand) uint32 {
	if n := r.IntN(8); n < 6 {
		return t.own(ctx)[n%2]
	}
	return uint32(r.IntN(16))
}

// own are namespaces of the hostile tenant: one of blocks of any size, one of chains of blocks with layers.
func (t *Target) own(ctx context.Context) [2]uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, shape := range []body{body{}.u8(0, 0, 0).i64(0, 0, 0, 1, 0).u8(0).i64(0).flag(false), body{}.u8(1, 1, 0).i64(2, 1, 8, 16, 0).u8(0).i64(0).flag(true)} {
		if t.spaces[i] == 0 {
			t.spaces[i] = t.openSpace(ctx, append(body{}.text(HostileTenant).text("own "+strconv.Itoa(i)).text(""), shape...))
		}
	}
	return t.spaces
}

// openSpace is 0 where the server has no connection to spare.
func (t *Target) openSpace(ctx context.Context, b body) uint32 {
	c, err := t.DialAt(ctx, t.Server.Addrs[Wire][0])
	if err != nil {
		return 0
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	_, _ = c.Write(append(hello(TokenHostile, 99), frame(frames.TypeOpenNamespace, 1, b, nil)...))
	for {
		head := make([]byte, frames.HeaderSize)
		if _, err := io.ReadFull(c, head); err != nil {
			return 0
		}
		h, err := frames.ParseHeader(head)
		if err != nil {
			return 0
		}
		p := make([]byte, h.Body)
		if _, err := io.ReadFull(c, p); err != nil || h.Type == frames.TypeError {
			return 0
		}
		if h.Type != frames.TypeHello|0x80 {
			return le.Uint32(p)
		}
	}
}
