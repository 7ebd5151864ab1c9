package resp

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/wire/auth"
)

// A tenant that opens all the connections it can leaves some for another, and is told to come back.
func TestConnectionsAreShared(t *testing.T) {
	t.Parallel()
	d, err := auth.New([]auth.Credential{credential(t, "a", tokenOwner, auth.All), credential(t, "b", tokenOther, auth.All)}, nil, nil)
	require.NoError(t, err)
	f := serve(t, nil, Options{Auth: d, Connections: 16})
	n := 0
	for ; ; n++ {
		require.Less(t, n, 16)
		if r := f.dial().do("AUTH", tokenOwner); r != "+OK" {
			require.Contains(t, r, "-TRYAGAIN")
			break
		}
	}
	require.Equal(t, 12, n)
	require.Equal(t, "+OK", f.dial().do("AUTH", tokenOther))
}
