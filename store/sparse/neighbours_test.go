package sparse

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// badPage is a Store that has lost a page: what is read of a block fails as a whole where that is among it.
type badPage struct {
	skep.Store
	key  skep.Key
	slot int
}

// PutSidecar and Sidecar are refused, as those of a Store over a network are.
func (*badPage) PutSidecar(ctx context.Context, sc skep.Scope, key skep.Key, pieces []skep.SidecarPiece) error {
	return skep.UnsupportedStore{}.PutSidecar(ctx, sc, key, pieces)
}

func (*badPage) Sidecar(ctx context.Context, sc skep.Scope, key skep.Key) ([]skep.SidecarPiece, error) {
	return skep.UnsupportedStore{}.Sidecar(ctx, sc, key)
}

func (p *badPage) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	ses, err := p.Store.Restore(ctx, r)
	return &badPageSession{ses, p, r}, err
}

type badPageSession struct {
	skep.Session
	p *badPage
	r *skep.RestoreRequest
}

func (s *badPageSession) Next(ctx context.Context, into []skep.Chunk) (int, error) {
	n, err := s.Session.Next(ctx, into)
	for i := range into[:n] {
		c := &into[i]
		if s.r.Chains[c.Chain].Keys[c.Block] == s.p.key && c.Layers.From <= s.p.slot && s.p.slot < c.Layers.To {
			c.Release()
			c.Data, c.Err = nil, &skep.Error{Op: "restore", Kind: skep.Damaged}
		}
	}
	return n, err
}

// An entry whose page is bad is missing, and none of those that are read with it: each is read alone before it is
// given up.
func TestABadPageCostsOneEntry(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	k := b.clustered()
	a := k.layers[0].arranged()
	lost := uint32(0)
	for e := range uint32(bedTokens) { // in the middle of a run
		if s := a.placement.Spots(e); len(s) == 1 && s[0].Slot%slotsPerBlock == 5 {
			lost = e
		}
	}
	at := a.placement.Spots(lost)[0]
	require.EqualValues(t, 5, at.Slot)
	of := a.where[at.Device][0]
	p := &badPage{Store: b.st.Store, key: k.recordKey(0, a.gen, of.device, of.block), slot: int(at.Slot)}
	b.st.Store = p
	entries, dst := make([]uint32, bedTokens), make([][]byte, bedTokens)
	for e := range entries {
		entries[e], dst[e] = uint32(e), make([]byte, layout.PageSize)
	}
	r, err := k.Fetch(b.ctx, 0, entries, dst)
	require.NoError(t, err)
	require.Equal(t, []uint32{lost}, r.Missing)
	for e := range entries {
		if uint32(e) != lost {
			require.Equal(t, bedEntry(e), dst[e][:k.entry], "entry %d", e)
		}
	}
}
