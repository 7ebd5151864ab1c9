package wire

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/server"
)

// landsAhead is a store whose blocks land as a restore begins, and are told of one by one.
type landsAhead struct{ skep.Store }

type landedAhead struct {
	skep.Session
	landed []skep.Chunk
}

func (l *landsAhead) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	s, err := l.Store.Restore(ctx, r)
	if err != nil {
		return nil, err
	}
	into := make([]skep.Chunk, 64)
	n, err := s.Next(ctx, into)
	return &landedAhead{s, into[:n]}, err
}

func (l *landedAhead) Next(ctx context.Context, into []skep.Chunk) (int, error) {
	if len(l.landed) == 0 {
		return 0, io.EOF
	}
	n := copy(into[:1], l.landed)
	l.landed = l.landed[n:]
	return n, nil
}

// What lands in shared memory counts as bytes of the tenant, whether the client waits to be told of it or ends the
// session before. Who is in debt begins none.
func TestBytesThatLandAreRated(t *testing.T) {
	t.Parallel()
	d, a, advance := rated(t, auth.Limits{BytesPerSecond: blockSize})
	r := serve(t, "unix", &landsAhead{newMemstore(storetest.Config{})}, server.Options{Auth: d})
	ch := chainOf(t, r.st, "a", 16)
	o := r.options()
	o.Token, o.SharedMemory, o.Conns, o.Strict, o.Retries = tokenA, 4<<20, 1, true, -1
	c := r.dial(t, o)
	mem, err := c.Alloc(t.Context(), 16*blockSize)
	require.NoError(t, err)
	defer mem.Release()
	ch.Dest = skep.Destination{Memory: mem.Bytes()}
	restore := &skep.RestoreRequest{Chains: []skep.Chain{ch}}

	s, err := c.Restore(t.Context(), restore)
	require.NoError(t, err)
	n, err := s.Next(t.Context(), make([]skep.Chunk, 16))
	require.NoError(t, err)
	require.Equal(t, 1, n, "there is no rate for more")
	require.NoError(t, s.Close(t.Context()))
	wait, ok := a.Admit(0, blockSize)
	require.False(t, ok)
	require.Equal(t, 16*time.Second, wait.Round(time.Second))

	_, err = c.Restore(t.Context(), restore)
	require.ErrorIs(t, err, skep.Overloaded)
	advance(15*time.Second + time.Millisecond)
	s, err = c.Restore(t.Context(), restore)
	require.NoError(t, err)
	require.NoError(t, s.Close(t.Context()))
}

// What is put from shared memory counts as bytes of the tenant: who is in debt for it puts nothing more, from shared
// memory or otherwise.
func TestBytesPutFromSharedMemoryAreRated(t *testing.T) {
	t.Parallel()
	d, a, advance := rated(t, auth.Limits{BytesPerSecond: blockSize})
	r := serve(t, "unix", newMemstore(storetest.Config{}), server.Options{Auth: d})
	o := r.options()
	o.Token, o.SharedMemory, o.Conns, o.Strict, o.Retries = tokenA, 4<<20, 1, true, -1
	c := r.dial(t, o)
	ch := chainOf(t, r.st, "a", 1)
	mem, err := c.Alloc(t.Context(), 4*blockSize)
	require.NoError(t, err)
	defer mem.Release()
	put := func(bytes []byte) error {
		block := skep.Block{Key: skep.KeyOf([]byte("k")), Parts: []skep.Part{{Bytes: bytes}}}
		_, err := c.Put(t.Context(), &skep.PutRequest{Scope: ch.Scope, Parent: &ch.Keys[0], Depth: 1, Blocks: []skep.Block{block}})
		return err
	}
	require.NoError(t, put(mem.Bytes()[:blockSize]))
	wait, ok := a.Admit(0, blockSize)
	require.False(t, ok)
	require.Equal(t, time.Second, wait.Round(time.Millisecond))
	require.ErrorIs(t, put(mem.Bytes()[:blockSize]), skep.Overloaded)
	require.ErrorIs(t, put(make([]byte, blockSize)), skep.Overloaded)
	advance(time.Second)
	require.NoError(t, put(mem.Bytes()[:blockSize]))
}

// Descriptors of a call that is refused for its tenant's rate are not left for the next one that has some.
func TestDescriptorsOfARefusedCallAreDropped(t *testing.T) {
	t.Parallel()
	d, _, advance := rated(t, auth.Limits{RequestsPerSecond: 1})
	r := serve(t, "unix", newMemstore(storetest.Config{}), server.Options{Auth: d})
	o := r.options()
	o.Token, o.SharedMemory, o.Conns = tokenA, 4<<20, 1
	c := r.dial(t, o)
	f, mem := inMemory(t, 1<<20)
	require.ErrorIs(t, attachRaw(t, c, &frames.AttachRequest{Size: 1 << 20, Entries: 64}, int(f.Fd())), skep.Overloaded)
	advance(time.Second)
	a, err := c.Attach(t.Context(), mem, int(f.Fd()), 0)
	require.NoError(t, err)
	advance(time.Second)
	require.NoError(t, a.Detach(t.Context()))
}
