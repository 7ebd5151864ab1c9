package resp

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/wire/auth"
)

// Reading makes no namespace, whoever reads, and whatever; storing makes those of its database. What another server made is found.
func TestReadingMakesNoNamespace(t *testing.T) {
	t.Parallel()
	d, err := auth.New([]auth.Credential{credential(t, "a", tokenReader, auth.Read), credential(t, "a", tokenOwner, auth.All)}, nil, nil)
	require.NoError(t, err)
	f := serve(t, nil, Options{Auth: d})
	spaces := func() int {
		all, err := f.store.Namespaces(t.Context())
		require.NoError(t, err)
		return len(all)
	}
	reader, owner := f.dial(), f.dial()
	require.Equal(t, "+OK", reader.do("AUTH", tokenReader))
	require.Equal(t, "+OK", owner.do("AUTH", tokenOwner))
	for n := range databases {
		for _, c := range []*client{reader, owner} {
			require.Equal(t, "+OK", c.do("SELECT", fmt.Sprint(n)))
			for cmd, want := range map[string]string{"GET k": "nil", "MGET k l": "*[nil nil]", "EXISTS k l": "0", "STRLEN k": "0", "TYPE k": "+none", "TTL k": "-2", "PTTL k": "-2",
				"SCAN 0": `*["0" *[]]`, "DBSIZE": "0", "TOUCH k": "0"} {
				require.Equal(t, want, c.words(cmd), cmd)
			}
			require.Contains(t, c.words("INFO"), "redis_version")
		}
		for cmd, want := range map[string]string{"DEL k": "0", "UNLINK k": "0", "EXPIRE k 9": "0", "PERSIST k": "0", "FLUSHDB": "+OK"} {
			require.Equal(t, want, owner.words(cmd), cmd)
		}
		require.Contains(t, reader.words("SET k v"), "-NOPERM")
		require.Contains(t, reader.do("SET", "k", string(randomBytes(2*pieceBytes))), "-NOPERM")
	}
	assert.Zero(t, spaces())
	require.Equal(t, "+OK", owner.words("SELECT 3"))
	require.Equal(t, "+OK", owner.words("SET k v"))
	assert.Equal(t, 2, spaces())
	require.Equal(t, "+OK", reader.words("SELECT 3"))
	assert.Equal(t, `"v"`, reader.words("GET k"), "what was made meanwhile")

	other := serve(t, f.store, Options{Auth: d}).dial()
	require.Equal(t, "+OK", other.do("AUTH", tokenReader))
	require.Equal(t, "+OK", other.words("SELECT 3"))
	assert.Equal(t, `"v"`, other.words("GET k"), "what another server made")
	assert.Equal(t, 2, spaces())
}
