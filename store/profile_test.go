package store

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// What a snapshot says is of every lookup before it: of batches that were handed over and that nobody
// has taken yet, too, for the goroutine that takes them rests in between.
func TestASnapshotSpeaksOfWhatWaits(t *testing.T) {
	p, err := newProfile(1 << 16)
	require.NoError(t, err)
	keys := make([]skep.Key, 4*profileBatch)
	for i := range keys {
		binary.LittleEndian.PutUint64(keys[i][8:], uint64(i))
	}
	for range 8 { // the first asks for each, the others find them
		p.saw(1, keys)
	}
	require.NotEmpty(t, p.queue)
	st := p.snapshot(1, 1<<30, 1<<30)
	require.Empty(t, p.queue)
	require.Zero(t, st.Dropped)
	require.EqualValues(t, 8*len(keys), st.References)
	require.InDelta(t, 7./8, st.DRAM, .01)
}
