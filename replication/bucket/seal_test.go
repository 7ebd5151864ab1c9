package bucket

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// A block comes back with the names that it had, whatever bytes they are of, and however long they are.
func TestNamesOfParts(t *testing.T) {
	t.Parallel()
	b := newShelf()
	n, other := newNode(t, options(b), 0), newNode(t, options(b), 0)
	names := map[string][]string{"UTF-8": {skep.PartKV, "é"}, "not UTF-8": {skep.PartKV, "\xff", "\xfe"},
		"long": {skep.PartKV}}
	for i := range skep.MaxParts - 1 {
		names["long"] = append(names["long"], strings.Repeat("\x01", skep.MaxPartNameSize-1)+string(byte(0x10+i)))
	}
	for name, parts := range names {
		k := skep.ChainKey(nil, []uint32{uint32(len(parts))})
		block := skep.Block{Key: k, Name: make([]byte, skep.MaxBlockNameSize)}
		for _, p := range parts {
			block.Parts = append(block.Parts, skep.Part{Name: p, Bytes: make([]byte, 16)})
		}
		block.Parts[0].Bytes = make([]byte, blockSize)
		_, err := n.Put(t.Context(), &skep.PutRequest{Scope: n.scope(), Blocks: []skep.Block{block}})
		require.NoError(t, err)
		n.look()
		other.look()
		require.Equal(t, 1, other.find([]skep.Key{k}), name)
		ses := other.begin([]skep.Key{k})
		blocks, err := drain(t.Context(), ses)
		require.NoError(t, err)
		require.Equal(t, 1, blocks, name)
		require.NoError(t, ses.Close(t.Context()))
		var came []string
		page, _, err := other.own.ListBlocks(t.Context(), other.ns, 1, 0, 16)
		require.NoError(t, err)
		for _, b := range page {
			if b.Key == k {
				require.Equal(t, block.Name, b.Name)
				for _, p := range b.Manifest {
					came = append(came, p.Name)
				}
			}
		}
		require.ElementsMatch(t, parts, came, name)
	}
}
