package wire

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/server"
)

// Windows are the smaller the less is left to their tenant, not to the server: eight restores of one tenant fit into
// its three quarters of the memory.
func TestManyRestoresFitATenantsMemory(t *testing.T) {
	t.Parallel()
	const memory = 32 << 20
	r := serve(t, "unix", newMemstore(storetest.Config{}),
		server.Options{Auth: directory(t), Limits: server.Limits{Memory: memory}})
	o := r.options()
	o.Token, o.Strict, o.Retries, o.Window = tokenA, true, -1, 8<<20
	c := r.dial(t, o)
	ch := chainOf(t, c, "a", 260) // twice the window, so that each session holds one
	for i := range 8 {
		s, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
		require.NoError(t, err, "restore %d", i)
		defer func() { require.NoError(t, s.Close(t.Context())) }()
	}
	require.LessOrEqual(t, r.Stats().Memory, int64(memory*3/4))
}
