package sparse

import (
	"context"
	"encoding/binary"
	"math"
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index/coact"
	"github.com/skepkv/skep/layout"
)

// Written is an arrangement's stored form. Its numbers are uvarints:
//
//	header    "SKARRN02" generation, entries, radius in thousandths, devices
//	routes    for each device: slots, and for each slot 0 or entry+1
//	clusters  clusters, and for each its length and entries
//	medoids   medoid key numbers, and those as 4 bytes each, little-endian
//
// "SKARRN01" is the same without the radius. The block is all of it, one after the other; rows
// are pieces of at most pieceBytes, each of one kind, cut so that what appended entries leave as
// it was stays in pieces of its own.
const (
	arrangementMagic = "SKARRN02"
	arrangementFirst = "SKARRN01"

	pieceBytes    = 128 << 10
	pieceSlots    = 16384 // of a device's routes
	pieceClusters = 256
)

// cutter writes an arrangement and cuts it.
type cutter struct {
	b    []byte
	from int // where the piece being written begins
	cuts []cut
}

// cut is a piece: its kind and where it ends.
type cut struct {
	kind skep.SidecarKind
	end  int
}

// room ends the piece when n more bytes would make it too long.
func (c *cutter) room(kind skep.SidecarKind, n int) {
	if len(c.b)-c.from+n > pieceBytes {
		c.cut(kind)
	}
}

func (c *cutter) cut(kind skep.SidecarKind) {
	if len(c.b) > c.from {
		c.cuts = append(c.cuts, cut{kind, len(c.b)})
		c.from = len(c.b)
	}
}

func (c *cutter) put(kind skep.SidecarKind, v uint64) {
	c.room(kind, binary.MaxVarintLen64)
	c.b = binary.AppendUvarint(c.b, v)
}

func (c *cutter) pieces() []skep.SidecarPiece {
	out, from := make([]skep.SidecarPiece, len(c.cuts)), 0
	for i, x := range c.cuts {
		out[i] = skep.SidecarPiece{Kind: x.kind, Bytes: c.b[from:x.end:x.end]}
		from = x.end
	}
	return out
}

// encode is an arrangement's stored form, and the same in pieces, which alias it.
func (a *arrangement) encode() ([]byte, []skep.SidecarPiece) {
	c := &cutter{b: make([]byte, 0, 1024+4*len(a.keys))}
	head := []uint64{a.gen, uint64(a.entries), uint64(math.Round(a.tau * 1000)), uint64(len(a.at))}
	if a.first {
		c.b, head = append(c.b, arrangementFirst...), slices.Delete(head, 2, 3)
	} else {
		c.b = append(c.b, arrangementMagic...)
	}
	for _, v := range head {
		c.put(skep.SidecarHeader, v)
	}
	c.cut(skep.SidecarHeader)
	for _, slots := range a.at {
		c.put(skep.SidecarRoutes, uint64(len(slots)))
		for i, e := range slots {
			if i > 0 && i%pieceSlots == 0 {
				c.cut(skep.SidecarRoutes)
			}
			if e == layout.NoEntry {
				c.put(skep.SidecarRoutes, 0)
			} else {
				c.put(skep.SidecarRoutes, uint64(e)+1)
			}
		}
		c.cut(skep.SidecarRoutes)
	}
	c.put(skep.SidecarClusters, uint64(len(a.clusters)))
	for i, members := range a.clusters {
		if i%pieceClusters == 0 {
			c.cut(skep.SidecarClusters)
		}
		c.put(skep.SidecarClusters, uint64(len(members)))
		for _, e := range members {
			c.put(skep.SidecarClusters, uint64(e))
		}
	}
	c.cut(skep.SidecarClusters)
	c.put(skep.SidecarMedoids, uint64(len(a.keys)))
	c.cut(skep.SidecarMedoids)
	for _, v := range a.keys {
		c.room(skep.SidecarMedoids, 4)
		c.b = binary.LittleEndian.AppendUint32(c.b, math.Float32bits(v))
	}
	c.cut(skep.SidecarMedoids)
	return c.b, c.pieces()
}

func decodeArrangement(b []byte) (*arrangement, error) {
	bad := &skep.Error{Op: "read arrangement", Kind: skep.Damaged}
	if len(b) < len(arrangementMagic) {
		return nil, bad
	}
	magic := string(b[:len(arrangementMagic)])
	if b = b[len(magic):]; magic != arrangementMagic && magic != arrangementFirst {
		return nil, bad
	}
	short := false
	get := func(limit uint64) uint64 {
		v, n := binary.Uvarint(b)
		if n <= 0 || v > limit {
			short = true
			return 0
		}
		b = b[n:]
		return v
	}
	a := &arrangement{gen: get(math.MaxUint64), entries: int(get(coact.MaxEntries)), tau: firstTau, first: magic == arrangementFirst}
	if magic == arrangementMagic {
		a.tau = float64(get(1000)) / 1000
	}
	list := func(least uint64) []uint32 {
		n := get(uint64(len(b)))
		out := make([]uint32, 0, n)
		for ; n > 0 && !short; n-- {
			v := get(uint64(a.entries) - 1 + least)
			if v < least { // an empty slot
				out = append(out, layout.NoEntry)
			} else {
				out = append(out, uint32(v-least))
			}
		}
		return out
	}
	if a.entries < 1 {
		return nil, bad
	}
	for n := get(layout.MaxDevices); n > 0 && !short; n-- {
		a.at = append(a.at, list(1))
	}
	for n := get(uint64(len(b))); n > 0 && !short; n-- {
		a.clusters = append(a.clusters, list(0))
	}
	n := get(uint64(len(b)))
	if short || uint64(len(b)) != 4*n || slices.ContainsFunc(a.clusters, func(c []uint32) bool { return len(c) == 0 }) {
		return nil, bad
	}
	for ; n > 0; n-- {
		a.keys = append(a.keys, math.Float32frombits(binary.LittleEndian.Uint32(b)))
		b = b[4:]
	}
	return a, nil
}

// put stores an arrangement in place of the layer's: the block, which is what counts, and then
// its rows.
func (y *layer) put(ctx context.Context, a *arrangement) error {
	k := y.k
	data, pieces := a.encode()
	if err := k.putMeta(ctx, k.key("arrangement", uint64(y.n)), data); err != nil {
		return err
	}
	y.putRows(ctx, a, pieces)
	return nil
}

// putRows keeps a stored arrangement in the Store's sidecar metadata, where it has any. Where it cannot now,
// for want of room, say, the block says it all, and an open tries again.
func (y *layer) putRows(ctx context.Context, a *arrangement, pieces []skep.SidecarPiece) {
	k := y.k
	if k.s.st.PutSidecar(ctx, k.meta, k.key("arrangement", uint64(y.n)), pieces) != nil {
		return
	}
	a.rows = bytesOf(pieces)
}

func bytesOf(pieces []skep.SidecarPiece) (n int64) {
	for _, p := range pieces {
		n += int64(len(p.Bytes))
	}
	return n
}

// stored reads a layer's arrangement: from rows of it, else from its block, of which rows are
// made then. errNoArrangement where there is none.
func (y *layer) stored(ctx context.Context) (*arrangement, error) {
	k := y.k
	if a := y.fromRows(ctx); a != nil {
		return a, nil
	}
	data, err := k.getMeta(ctx, k.key("arrangement", uint64(y.n)))
	if err != nil {
		return nil, err
	}
	if data == nil {
		return nil, errNoArrangement
	}
	a, err := decodeArrangement(data)
	if err != nil {
		return nil, err
	}
	_, pieces := a.encode()
	y.putRows(ctx, a, pieces)
	return a, nil
}

// fromRows is what the rows say; nil when there are none, or none that can be used.
func (y *layer) fromRows(ctx context.Context) *arrangement {
	k := y.k
	pieces, err := k.s.st.Sidecar(ctx, k.meta, k.key("arrangement", uint64(y.n)))
	if err != nil {
		return nil
	}
	data := make([]byte, 0, bytesOf(pieces))
	for _, p := range pieces {
		data = append(data, p.Bytes...)
	}
	a, err := decodeArrangement(data)
	if err != nil {
		return nil
	}
	a.rows = int64(len(data))
	return a
}
