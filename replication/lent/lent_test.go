package lent

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
)

// mapping is a Store whose server maps one piece of memory.
type mapping struct {
	skep.Store
	mem   *byte
	doubt bool
}

func (m *mapping) Shares(p []byte) bool  { return &p[0] == m.mem }
func (m *mapping) InDoubt(p []byte) bool { return m.doubt && &p[0] == m.mem }

func TestMemoryThatAServerWritesTo(t *testing.T) {
	t.Parallel()
	mine, other := make([]byte, 8), make([]byte, 8)
	st := &mapping{Store: memstore.New(memstore.Options{}), mem: &mine[0], doubt: true}
	into := func(d skep.Destination) *skep.RestoreRequest {
		return &skep.RestoreRequest{Chains: []skep.Chain{{Dest: d}}}
	}
	paged := &skep.Paged{Planes: [][2][]byte{{other}, {other, mine}}}
	require.True(t, Lends(st, into(skep.Destination{Memory: mine})))
	require.True(t, Lends(st, into(skep.Destination{Paged: paged})))
	require.False(t, Lends(st, into(skep.Destination{Memory: other})))
	require.False(t, Lends(st, into(skep.Destination{})), "chunks are lent by the Store")
	require.False(t, Lends(st.Store, into(skep.Destination{Memory: mine})))
	require.True(t, InDoubt(st, into(skep.Destination{Paged: paged})))
	require.False(t, InDoubt(st, into(skep.Destination{Memory: other})))
	st.doubt = false
	require.False(t, InDoubt(st, into(skep.Destination{Memory: mine})), "the server is done")
}

// Who lent memory to a call is told when the last that holds it lets it go, and not where none did after its call.
func TestMemoryThatNodesHold(t *testing.T) {
	t.Parallel()
	told := 0
	p := NewParts(func() { told++ })
	p.Begin()
	p.Begin()
	p.End(false)
	require.False(t, p.Held())
	p.End(true)
	require.True(t, p.Held())
	p.Release()
	require.Zero(t, told, "the call has it yet, or the node")
	p.Release()
	require.Equal(t, 1, told)

	p = NewParts(nil)
	p.Begin()
	p.End(true)
	p.Release()
	p.Release()
}
