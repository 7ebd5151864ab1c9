package wire

import (
	"context"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/runs"
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

// A put out of shared memory goes in two frames. One is refused while the server still reads the memory of the other:
// the caller is told that the memory is not its own yet, with why the put failed; nobody stores what it would write
// there.
func TestAPutInSeveralFramesKeepsItsMemoryUntilAllAreRead(t *testing.T) {
	t.Parallel()
	f := &firstPutFails{Store: newMemstore(storetest.Config{}), there: make(chan struct{}), gate: make(chan struct{}),
		done: make(chan struct{})}
	r := serve(t, "unix", f, server.Options{Limits: server.Limits{Body: 64 << 10}})
	o := r.options()
	o.SharedMemory, o.Conns = 8<<20, 1
	c := r.dial(t, o)
	ns, err := c.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "n",
		Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}})
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
		s, err := f.Store.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{{Scope: req.Scope,
			Keys: []skep.Key{b.Key}}}})
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

// A put in several frames that is given up says so as one in a single frame does.
func TestAPutInSeveralFramesThatIsGivenUp(t *testing.T) {
	t.Parallel()
	g := newGated()
	_, c := late(t, g, nil)
	ctx, cancel := context.WithCancel(t.Context())
	req, of := twoRuns(t, c, make([]byte, 2*blockSize))
	g.shut()
	go func() {
		<-g.reached
		cancel()
	}()
	_, err := c.putRuns(ctx, req, &skep.NamespaceInfo{}, of, 1)
	require.ErrorIs(t, err, skep.Deadline)
	require.ErrorIs(t, err, context.Canceled)
	g.open()
}

// And one that is given up when all of it is stored says what became of it.
func TestAPutInSeveralFramesThatIsGivenUpTooLate(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("no memfd on this system")
	}
	g := newGated()
	_, c := late(t, g, sharing)
	ctx, cancel := context.WithCancel(t.Context())
	mem, err := c.Alloc(t.Context(), 2*blockSize)
	require.NoError(t, err)
	defer mem.Release()
	req, of := twoRuns(t, c, mem.Bytes())
	g.shut()
	go func() {
		<-g.reached
		<-g.reached
		cancel()
		g.open()
	}()
	list, err := c.putRuns(ctx, req, &skep.NamespaceInfo{}, of, 2)
	require.NoError(t, err)
	for _, x := range list {
		require.Equal(t, skep.Committed, x.Outcome)
	}
}

// twoRuns is a put of two blocks, each in a frame.
func twoRuns(t *testing.T, c *Client, mem []byte) (*skep.PutRequest, []runs.Run) {
	ns, err := c.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "n",
		Shape: skep.Shape{BlockTokens: 16, Bytes: blockSize}})
	require.NoError(t, err)
	req := &skep.PutRequest{Scope: skep.Scope{Namespace: ns.ID}}
	for i := range 2 {
		req.Blocks = append(req.Blocks, skep.Block{Key: skep.KeyOf([]byte{byte(i)}),
			Parts: []skep.Part{{Bytes: mem[i*blockSize : (i+1)*blockSize]}}})
	}
	return req, []runs.Run{{Range: skep.Range{To: 1}}, {Range: skep.Range{From: 1, To: 2}}}
}
