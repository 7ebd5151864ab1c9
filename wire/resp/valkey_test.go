package resp

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
)

// Large objects of any number of pieces are told of as they are, and what is read for their checksum is given back.
func TestBlobInfoOfLargeObjects(t *testing.T) {
	t.Parallel()
	f := serve(t, nil, Options{})
	c := f.dial()
	for _, size := range []int{1, inlineBytes, inlineBytes + 1, pieceBytes, pieceBytes + 1, sendWindow + 3} {
		value := randomBytes(size)
		sum := crc32.Checksum(value, crc32.MakeTable(crc32.Castagnoli))
		require.Equal(t, "+OK", c.do("BLOB.TCP_SET", "k", string(value)))
		assert.Equal(t, fmt.Sprintf(`*["len" %d "crc" %d "tier" "dram"]`, size, sum), c.do("BLOB.INFO", "k"))
		assert.Equal(t, fmt.Sprint(sum), c.do("BLOB.INFO", "k", "crc"))
		assert.Equal(t, quoted(value), c.do("BLOB.TCP_GET", "k"))
	}
	storetest.Eventually(t, "all is given back", func() bool { h := f.server.Held(); return h.Sending == 0 && h.Receiving == 0 })
}

// Pipelined BLOB.TCP_SETs are stored together, pipelined BLOB.TCP_GETs read together, and neither takes what is behind it.
func TestBlobsInAPipeline(t *testing.T) {
	t.Parallel()
	mem := memstore.New(memstore.Options{})
	defer mem.Close()
	var puts, blocks atomic.Int32
	f := serve(t, &wrapped{Store: mem, put: func(r *skep.PutRequest) ([]skep.PutResult, error) {
		puts.Add(1)
		blocks.Add(int32(len(r.Blocks)))
		return nil, nil
	}}, Options{})
	c := f.dial()
	_, err := c.Write(bytes.Join([][]byte{encode("BLOB.TCP_SET", "a", "1"), encode("BLOB.TCP_SET", "b", ""), encode("blob.tcp_set", "c", "3"),
		encode("SET", "d", "", "XX"), encode("BLOB.TCP_GET", "a"), encode("BLOB.TCP_GET", "b"), encode("GET", "c"), encode("BLOB.TCP_GET", "c")}, nil))
	require.NoError(t, err)
	for _, want := range []string{"+OK", "-ERR object length must be > 0", "+OK", "nil", `"1"`, "nil", `"3"`, `"3"`} {
		assert.Equal(t, want, c.reply())
	}
	assert.EqualValues(t, 1, puts.Load())
	assert.EqualValues(t, 2, blocks.Load())
}

// The tier is the one that is slowest of all of a value.
func TestTheTierOfALargeObject(t *testing.T) {
	t.Parallel()
	mem := memstore.New(memstore.Options{})
	defer mem.Close()
	var second atomic.Uint32
	f := serve(t, &wrapped{Store: mem, lookup: func(r *skep.LookupRequest) (skep.LookupResult, bool) {
		tiers := []skep.Tier{skep.TierDRAM, skep.Tier(second.Load())}
		return skep.LookupResult{Blocks: len(r.Keys), Tiers: tiers[:min(len(r.Keys), 2)]}, r.Tiers
	}}, Options{})
	c := f.dial()
	require.Equal(t, "+OK", c.do("SET", "k", string(randomBytes(2*pieceBytes))))
	require.Equal(t, "+OK", c.do("SET", "small", "v"))
	for _, last := range []skep.Tier{skep.TierDRAM, skep.TierDevice, skep.TierNone} {
		second.Store(uint32(last))
		want := `"disk"`
		if last == skep.TierDRAM {
			want = `"dram"`
		}
		assert.Equal(t, want, c.do("BLOB.INFO", "k", "TIER"))
		assert.Equal(t, `"dram"`, c.do("BLOB.INFO", "small", "TIER"))
	}
}
