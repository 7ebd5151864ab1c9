package store

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/restore"
)

// A reader of a chain that comes by layers, in very many chunks, asks for none of them: what may be ready for it is
// counted. Whether they are found missing, given up or claimed, it is told of each once.
func TestAReaderWhoDoesNotReadIsReckonedWith(t *testing.T) {
	t.Parallel()
	const layers, blocks, some = 256, 128, 9000
	for name, then := range map[string]func(t *testing.T, ses skep.Session){
		"read late":    func(*testing.T, skep.Session) {},
		"stopped":      func(t *testing.T, ses skep.Session) { require.NoError(t, ses.Stop(testContext(t), 0)) },
		"read a while": func(t *testing.T, ses skep.Session) { readSome(t, ses, some) },
		"claimed": func(t *testing.T, ses skep.Session) {
			claim, err := ses.Claim(testContext(t), 0, skep.All, skep.Idle)
			require.NoError(t, err)
			require.Equal(t, skep.Range{From: 0, To: layers}, claim.Granted)
		},
		"claimed in pieces": func(t *testing.T, ses skep.Session) {
			for _, l := range []int{layers - 1, 200, 150, 199} {
				_, err := ses.Claim(testContext(t), 0, skep.Only(l, l+1), skep.Idle)
				require.NoError(t, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _, _ := openRig(t, func(*Options) {})
			spec := skep.NamespaceSpec{Tenant: "t", Name: "n", Chained: true, Shape: skep.Shape{Kind: skep.Attention,
				Layers: layers, KVHeads: 1, HeadDim: 64, Element: skep.BF16, BlockTokens: 16}}
			ns, err := s.OpenNamespace(testContext(t), spec)
			require.NoError(t, err)
			c := skep.Chain{Scope: skep.Scope{Namespace: ns.ID}, Keys: chainKeys(1, blocks), Direction: skep.LayersUp}
			ses, err := s.Restore(testContext(t), &skep.RestoreRequest{Chains: []skep.Chain{c}})
			require.NoError(t, err)
			under, _ := s.calls.Under()
			require.GreaterOrEqual(t, under, int64(restore.CallState+blocks*restore.BlockState+(layers-1)*blocks*32))
			then(t, ses)
			if name != "read a while" {
				require.Equal(t, layers*blocks, readSome(t, ses, 2*layers*blocks))
			} else {
				require.Equal(t, layers*blocks-some, readSome(t, ses, 2*layers*blocks))
			}
			require.NoError(t, ses.Close(testContext(t)))
			require.NoError(t, s.Close())
		})
	}
}

// The same where nothing is loaded below a layer that did not come. Why a block is a miss is said of all its layers.
func TestAReaderWhoDoesNotReadWhatIsBelowALayer(t *testing.T) {
	t.Parallel()
	const layers, blocks = 256, 128
	s, _, _ := openRig(t, func(*Options) {})
	spec := skep.NamespaceSpec{Tenant: "t", Name: "n", Chained: true, Shape: skep.Shape{Kind: skep.Attention,
		Layers: layers, KVHeads: 1, HeadDim: 64, Element: skep.BF16, BlockTokens: 16}}
	ns, err := s.OpenNamespace(testContext(t), spec)
	require.NoError(t, err)
	c := skep.Chain{Scope: skep.Scope{Namespace: ns.ID}, Keys: chainKeys(1, blocks), Direction: skep.LayersDown,
		Compute: &skep.Compute{Cost: skep.RecomputeCost{PerToken: time.Second}}}
	ses, err := s.Restore(testContext(t), &skep.RestoreRequest{Chains: []skep.Chain{c}})
	require.NoError(t, err)
	eventually(t, "a layer is missing", func() bool { return s.restores.State().Untold == layers*blocks })
	require.Zero(t, s.restores.State().Ready)
	n, into := 0, make([]skep.Chunk, 100)
	for err == nil {
		var more int
		more, err = ses.Next(testContext(t), into)
		for _, ch := range into[:more] {
			require.ErrorIs(t, ch.Err, skep.NotFound, "block %d, layer %d", ch.Block, ch.Layers.From)
		}
		n += more
	}
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, layers*blocks, n)
	require.NoError(t, ses.Close(testContext(t)))
	require.NoError(t, s.Close())
}

// readSome takes up to most chunks, which are all misses and none of them twice, and says how many there were.
func readSome(t *testing.T, ses skep.Session, most int) (n int) {
	seen := map[[2]int]bool{}
	into := make([]skep.Chunk, 100)
	for n < most {
		more, err := ses.Next(testContext(t), into[:min(len(into), most-n)])
		if errors.Is(err, io.EOF) {
			return n
		}
		require.NoError(t, err)
		for _, c := range into[:more] {
			require.Error(t, c.Err)
			require.False(t, seen[[2]int{c.Block, c.Layers.From}], "block %d, layer %d", c.Block, c.Layers.From)
			seen[[2]int{c.Block, c.Layers.From}] = true
		}
		n += more
	}
	return n
}
