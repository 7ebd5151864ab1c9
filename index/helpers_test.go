package index

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"

	"github.com/skepkv/skep/tools/drawn"
)

// fpOf is the fingerprint of a small number, as random as a keyed hash.
func fpOf(n uint64) (fp Fingerprint) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], n)
	h := xxh3.Hash128(b[:])
	binary.LittleEndian.PutUint64(fp[:8], h.Lo)
	binary.LittleEndian.PutUint32(fp[8:], uint32(h.Hi))
	return fp
}

// at is a location in a group.
func at(group uint32, n uint64) uint64 { return uint64(group)<<32 | n }

// open makes an index that is checked and closed when the test ends.
func open(t testing.TB, cfg Config) *Index {
	x, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, x.Check())
		x.Close()
	})
	return x
}

// chain is keys base to base+n-1 as blocks of one chain, one page each in group 1.
func chain(base uint64, n int) []Entry {
	list := make([]Entry, n)
	for i := range list {
		list[i] = Entry{FP: fpOf(base + uint64(i)), Depth: uint32(i), Location: at(1, base+uint64(i)+1), Pages: 1}
		if i > 0 {
			list[i].HasParent, list[i].Parent = true, list[i-1].FP
		}
	}
	return list
}

func insert(t testing.TB, x *Index, list ...Entry) {
	t.Helper()
	for _, e := range list {
		_, existed, err := x.Insert(e)
		require.NoError(t, err)
		require.False(t, existed)
	}
}

// lookup is Lookup of the keys base to base+n-1.
func lookup(x *Index, base uint64, n int) (int, ID) {
	return x.Lookup(n, func(i int) Fingerprint { return fpOf(base + uint64(i)) })
}

func depthOf(x *Index, base uint64, n int) int {
	d, _ := lookup(x, base, n)
	return d
}

// second is a time so many seconds after the start of the test's world.
func second(n int) time.Time { return time.Unix(1_000_000+int64(n), 0) }

func seeded(t testing.TB) *rand.Rand {
	seed := drawn.Seed(t)
	return rand.New(rand.NewPCG(seed, 0))
}
