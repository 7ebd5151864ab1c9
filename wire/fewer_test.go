package wire

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/server"
)

// A client makes do with the connections that its tenant may have: one is enough.
func TestAClientMakesDoWithOneConnection(t *testing.T) {
	t.Parallel()
	h, err := auth.TokenHash(tokenA)
	require.NoError(t, err)
	d, err := auth.New([]auth.Credential{{Name: "a", Tenant: "a", Rights: auth.All, TokenSHA256: h}},
		map[string]auth.Limits{"a": {Connections: 1}}, nil)
	require.NoError(t, err)
	r := serve(t, "tcp", newMemstore(storetest.Config{}), server.Options{Auth: d})
	o := r.options()
	o.Token, o.Strict = tokenA, true
	c := r.dial(t, o)
	ch := chainOf(t, c, "a", 4)
	for range 10 {
		requireHits(t, c, ch)
	}
	require.Equal(t, 1, r.Stats().Connections)
	o.Token = tokenA
	_, err = Dial(t.Context(), o)
	require.ErrorIs(t, err, skep.Overloaded, "another client has none")
}
