package wire

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/server"
)

// A session whose server has come to a standstill in the middle of a block is given up without it: from then on nothing
// is written to the destination, what had landed is there, and the rest is missed. The connection goes on with what else
// is asked on it.
func TestASessionIsGivenUpWithoutItsServer(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"tcp", "tls"} {
		for _, before := range []int64{2000, 3*blockSize + 1000} { // bytes of the answer that come
			r := serve(t, where, newMemstore(storetest.Config{}), server.Options{})
			p := newProxy(t, r.addr)
			p.stalled, p.goesOn = make(chan struct{}), make(chan struct{})
			o := patient(p.addr)
			o.TLS = r.tls
			c := r.dial(t, o)
			ch := chainOf(t, c, "t", 16)
			mem := make([]byte, 16*blockSize)
			ch.Dest = skep.Destination{Memory: mem, Stride: blockSize}
			p.stall.Store(before)
			ses, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
			require.NoError(t, err)
			<-p.stalled
			require.True(t, ses.(interface{ LetGo() bool }).LetGo())
			then := bytes.Clone(mem)
			landed, missed := 0, 0
			var into [4]skep.Chunk
			for {
				n, err := ses.Next(t.Context(), into[:])
				if errors.Is(err, io.EOF) {
					break
				}
				require.NoError(t, err)
				for _, got := range into[:n] {
					if got.Err != nil {
						require.ErrorIs(t, got.Err, skep.Stopped)
						missed++
						continue
					}
					at := got.Block * blockSize
					require.Equal(t, storetest.Payload(ch.Keys[got.Block], skep.PartKV, blockSize), mem[at:at+blockSize])
					landed++
				}
			}
			require.Equal(t, 16, landed+missed)
			require.Positive(t, missed)
			close(p.goesOn)
			require.NoError(t, ses.Close(t.Context()))
			require.Equal(t, then, mem, "nothing was written since")
			found, err := c.Lookup(t.Context(), &skep.LookupRequest{Scope: ch.Scope, Keys: ch.Keys})
			require.NoError(t, err)
			require.Equal(t, 16, found.Blocks)
			again := &skep.RestoreRequest{Chains: []skep.Chain{ch}}
			require.NoError(t, skep.Load(t.Context(), c, again, func(c *skep.Chunk) error { return c.Err }))
		}
	}
}

// What drives of the server write to is not given up without it.
func TestASessionOfSharedMemoryIsNotGivenUp(t *testing.T) {
	t.Parallel()
	r, c := late(t, newGated(), sharing)
	ch := chainOf(t, r.dial(t, r.options()), "t", 4)
	mem, err := c.Alloc(t.Context(), 4*blockSize)
	require.NoError(t, err)
	ch.Dest = skep.Destination{Memory: mem.Bytes(), Stride: blockSize}
	ses, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
	require.NoError(t, err)
	require.False(t, ses.(interface{ LetGo() bool }).LetGo())
	require.NoError(t, ses.Close(t.Context()))
}
