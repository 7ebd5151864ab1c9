package segment

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// One of each structure, used as the golden images and wherever a test needs one.

var (
	sampleStore  = StoreID{0x53, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	sampleDevice = DeviceID{0xd0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	sampleSecret = Secret{0xaa, 0xbb, 0xcc, 0xdd, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	sampleTag    = SaltTag{0x77, 0x66, 0x55, 15: 1}
	sampleTime   = time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)
	sampleLog    = LogID{Store: sampleStore, Secret: sampleSecret, Group: 7, Generation: 3, Position: 1}
)

func sampleSuperblock() Superblock {
	return Superblock{
		Sequence: 5, Store: sampleStore, Device: sampleDevice, Serial: "S64GNE0R704321", DeviceIndex: 1, DeviceCount: 4,
		DeviceBytes: 1 << 40, SegmentBytes: 64 << 20, FirstSegment: ReservedBytes, HashSecret: sampleSecret, Created: sampleTime,
	}
}

func sampleHeader() Header {
	return Header{
		Store: sampleStore, Device: sampleDevice, Group: 7, Generation: 3, Segment: 21, Position: 1,
		Devices:      []Slot{{Device: 0, Segment: 20}, {Device: 1, Segment: 21}, {Device: 3, Segment: 22}},
		SegmentBytes: 64 << 20, Copies: 2, Seq: 1 << 33,
	}
}

func sampleRecord() Record {
	parent, replaced := skep.KeyOf([]byte("parent")), skep.KeyOf([]byte("tail"))
	return Record{
		Seq: 1<<33 + 1, Instance: 9, NamespaceID: 2, SaltTag: sampleTag, Key: skep.KeyOf([]byte("block")), Parent: &parent,
		Depth: 17, ValidTokens: 100, Version: 4, Flags: RecordSalted | RecordDurable, Pages: 33, Name: []byte("vllm:0001/17"),
		Parts: []RecordPart{
			{Name: skep.PartKV, Size: 131072, Sums: []uint64{0x1111, 0x2222, 0x3333, 0x4444}},
			{Name: "state", Size: 5, Sums: []uint64{0x5555}, Inline: []byte("hello")},
			{Name: "boundary", Size: 0, Inline: []byte{}},
			{Name: "adapter", Size: 3000, Sums: []uint64{0x6666}},
		},
		Copies:   []layout.Location{{Group: 7, Page: 100, Device: 1, Sub: 0}, {Group: 8, Page: 4, Device: 2, Sub: 7}},
		Replaces: &replaced,
	}
}

// sealedRecord is sampleRecord with an encrypted payload.
func sealedRecord() Record {
	r := sampleRecord()
	r.Sealed = &Seal{Key: KeyID{0xee, 1, 2, 15: 9}, Nonce: [NonceSize]byte{0x1f, 3, 4, 15: 8}}
	for i := range r.Parts {
		p := &r.Parts[i]
		p.Seal = make([]byte, SealSize(len(p.Sums)))
		for j := range p.Seal {
			p.Seal[j] = byte(16*i + j)
		}
	}
	return r
}

// plainRecord is a block of a usual model: 80 layers, K and V apart, one copy.
func plainRecord(i int) Record {
	parent := skep.KeyOf(fmt.Appendf(nil, "plain %d", i-1))
	r := Record{
		Seq: uint64(i), Instance: 1, NamespaceID: 1, Key: skep.KeyOf(fmt.Appendf(nil, "plain %d", i)), Parent: &parent, Depth: uint32(i + 1),
		Version: 1, Pages: 1280, Parts: []RecordPart{{Name: skep.PartKV, Size: 5 << 20, Sums: make([]uint64, 160)}},
		Copies: []layout.Location{{Group: 3, Page: uint32(i%1000) + 1, Device: uint8(i % 4)}},
	}
	for j := range r.Parts[0].Sums {
		r.Parts[0].Sums[j] = uint64(i)*1e9 + uint64(j)
	}
	return r
}

func sampleTombstone() Tombstone {
	return Tombstone{Seq: 1<<33 + 2, Covers: 1 << 32, Instance: 9, SaltTag: sampleTag, Key: skep.KeyOf([]byte("gone"))}
}

func sampleSealing() Sealing { return Sealing{Instance: 9, Key: KeyID{0xee, 1, 2, 15: 9}} }

// sealingLog is a log with a sealing, and a tombstone after it.
func sealingLog(t testing.TB) *testLog {
	l := newTestLog(t, 2)
	sealing, stone := sampleSealing(), sampleTombstone()
	l.append(1<<33+9, func(w *LogWriter) {
		require.NoError(t, errors.Join(w.Mark(&Mark{Flushed: 1 << 33}), w.Sealing(&sealing)))
	})
	l.append(1<<33+10, func(w *LogWriter) { require.NoError(t, w.Tombstone(&stone)) })
	return l
}

func samplePurge() Purge {
	return Purge{Seq: 1<<33 + 3, Covers: 1<<33 + 2, Instance: 9, Salted: true, SaltTag: sampleTag}
}

func sampleNamespace() Namespace {
	return Namespace{Seq: 1<<33 + 4, Instance: 9, Info: skep.NamespaceInfo{
		ID: 2, Created: sampleTime,
		NamespaceSpec: skep.NamespaceSpec{
			Tenant: "acme", Name: "chat", Model: "llama-70b@1", Class: skep.Durable, Copies: 2, Chained: true,
			Shape: skep.Shape{Kind: skep.Attention, Layers: 2, KVHeads: 8, HeadDim: 128, Element: skep.BF16, BlockTokens: 16},
		},
	}}
}

// randomRecord is a valid record of random shape.
func randomRecord(rng *rand.Rand) Record {
	key := func() (k skep.Key) {
		for i := range k {
			k[i] = byte(rng.Uint32())
		}
		return k
	}
	r := Record{
		Seq: rng.Uint64(), Instance: rng.Uint32(), NamespaceID: rng.Uint32(), Key: key(), ValidTokens: rng.Uint32N(skep.MaxBlockTokens + 1),
		Version: rng.Uint32(), Flags: RecordFlags(rng.UintN(uint(knownRecordFlags) + 1)), Name: make([]byte, rng.IntN(40)),
	}
	if rng.IntN(2) == 0 {
		k := key()
		r.Parent, r.Depth = &k, 1+rng.Uint32N(skep.MaxDepth)
	}
	if rng.IntN(3) == 0 {
		k := key()
		r.Replaces = &k
	}
	if rng.IntN(2) == 0 {
		r.SaltTag = SaltTag(r.Key[:])
	}
	if rng.IntN(3) == 0 {
		r.Sealed = &Seal{Key: KeyID(r.Key[:]), Nonce: [NonceSize]byte(r.Key[16:])}
	}
	placed := false
	for i := range 1 + rng.IntN(4) {
		p := RecordPart{Name: fmt.Sprintf("part%d", i)}
		if p.Size = int64(rng.IntN(1000)); p.Size <= MaxInlineSize && rng.IntN(2) == 0 {
			p.Inline = make([]byte, p.Size)
		} else {
			p.Size = rng.Int64N(1 << 20)
			placed = placed || p.Size > 0
		}
		for range rng.IntN(300) {
			p.Sums = append(p.Sums, rng.Uint64())
		}
		if r.Sealed != nil {
			p.Seal = make([]byte, SealSize(len(p.Sums)))
			p.Seal[0] = byte(rng.Uint32())
		}
		r.Parts = append(r.Parts, p)
	}
	if placed {
		r.Pages = 1 + rng.Uint32N(1000)
		for i := range 1 + rng.IntN(skep.MaxCopies) {
			r.Copies = append(r.Copies, layout.Location{Group: rng.Uint32(), Page: uint32(1 + 10*i + rng.IntN(10)), Device: uint8(rng.IntN(MaxGroupDevices)), Sub: uint8(rng.IntN(SubsPerPage))})
		}
	}
	return r
}
