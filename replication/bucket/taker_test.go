package bucket

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
)

// picky is a node's Store that takes blocks of no tenant, or of all.
type picky struct {
	skep.Store
	takes atomic.Bool
}

func (p *picky) Unwrap() skep.Store { return p.Store }
func (p *picky) Takes(string) bool  { return p.takes.Load() }

// What objects have of a tenant whose blocks the node's Store would not take is neither found nor fetched.
func TestWhatTheStoreWouldNotTakeIsNotFetched(t *testing.T) {
	t.Parallel()
	b := newShelf()
	_, keys := one(t, b)

	own := memstore.New(memstore.Options{})
	no := &picky{Store: own}
	s, err := New(no, options(b))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	other := &node{Store: s, t: t, own: own}
	_ = other.turn()
	other.open("n")
	other.look()
	require.Zero(t, other.find(keys))
	require.Zero(t, other.load(keys))
	require.Zero(t, other.Usage().LoadedCalls)
	no.takes.Store(true)
	require.Equal(t, 8, other.find(keys))
	require.Equal(t, 8, other.load(keys))
}
