package wire

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/server"
)

// firstPutFails refuses the first of several puts when the second has come, and keeps that until the gate opens.
type firstPutFails struct {
	skep.Store
	n                 atomic.Int64
	there, gate, done chan struct{}
}

func (f *firstPutFails) Put(ctx context.Context, r *skep.PutRequest) ([]skep.PutResult, error) {
	if f.n.Add(1) == 1 {
		<-f.there
		return nil, &skep.Error{Op: "put", Kind: skep.DeviceFailed}
	}
	close(f.there)
	<-f.gate
	list, err := f.Store.Put(context.WithoutCancel(ctx), r)
	close(f.done)
	return list, err
}

// A put out of shared memory goes in two frames. One is refused while the server still reads the memory of the other: the
// caller is told that the memory is not its own yet, with why the put failed; nobody stores what it would write there.
func TestAPutInSeveralFramesKeepsItsMemoryUntilAllAreRead(t *testing.T) {
	t.Parallel()
	f := &firstPutFails{Store: newMemstore(storetest.Config{}), there: make(chan struct{}), gate: make(chan struct{}), done: make(chan struct{})}
	r := serve(t, "unix", f, server.Options{Limits: server.Limits{Body: 64 << 10}})
	o := r.options()
	o.SharedMemory, o.Conns = 8<<20, 1
	c := r.dial(t, o)
	ns, err := c.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}})
	require.NoError(t, err)
	const n, size = 600, 256
	mem, err := c.Alloc(t.Context(), n*size)
	require.NoError(t, err)
	req := &skep.PutRequest{Scope: skep.Scope{Namespace: ns.ID}}
	for i := range n {
		k := skep.KeyOf([]byte(strconv.Itoa(i)))
		b := mem.Bytes()[i*size : (i+1)*size]
		copy(b, storetest.Payload(k, skep.PartKV, size))
		req.Blocks = append(req.Blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: b}}})
	}
	c.opt.Patience = 2 * time.Second // from here on: one put fails within it, the other is held for longer
	_, err = c.Put(t.Context(), req)
	rest, held := skep.Held(err)
	assert.True(t, held, "%v", err)
	assert.ErrorIs(t, rest, skep.DeviceFailed)
	if !held {
		clear(mem.Bytes())
	}
	close(f.gate)
	<-f.done
	right := 0
	for _, b := range req.Blocks {
		s, err := f.Store.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{{Scope: req.Scope, Keys: []skep.Key{b.Key}}}})
		require.NoError(t, err)
		for _, x := range collect(t, s) {
			if x.Err == nil {
				require.Equal(t, storetest.Payload(b.Key, skep.PartKV, size), x.Data[0])
				right++
				x.Release()
			}
		}
		require.NoError(t, s.Close(t.Context()))
	}
	require.Positive(t, right)
	require.ErrorIs(t, c.Close(), skep.NotReleased, "the server has read it all, and did not say so")
}
