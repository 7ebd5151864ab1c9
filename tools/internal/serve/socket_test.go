package serve

import (
	"crypto/sha256"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire"
)

// A server that asks who one is lets all users of the machine ask: under systemd it has a
// user of its own. Whoever has no token gets no further.
func TestASocketWithCredentialsIsForEverybodyWhoHasOne(t *testing.T) {
	t.Parallel()
	c := local(t)
	c.Credentials = []CredentialConfig{{Name: "engine", Tenant: "t", Rights: []string{"read"}, TokenSHA256: fmt.Sprintf("%x", sha256.Sum256([]byte(token)))}}
	r := start(t, c, Options{})
	fi, err := os.Stat(c.Unix)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o666), fi.Mode().Perm())
	for with, fails := range map[string]bool{"": true, token + "x": true, token: false} {
		o := wire.Options{Addr: "unix:" + c.Unix, Token: with, Timeout: time.Minute, Strict: true}
		client, err := wire.Dial(t.Context(), o)
		if fails {
			require.ErrorIs(t, err, skep.Denied, with)
			continue
		}
		require.NoError(t, err)
		require.NoError(t, client.Close())
	}
	require.NoError(t, r.stop())
}

// A socket for one user is nobody else's from the moment it is there.
func TestASocketIsBoundWithItsMode(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux knows the mode of a socket before it is bound")
	}
	path := local(t).Unix
	l, err := bindUnix(path, 0o600)
	require.NoError(t, err)
	defer l.Close()
	fi, err := os.Stat(path)
	require.NoError(t, err)
	require.Zero(t, fi.Mode().Perm()&^0o600, "%v", fi.Mode())
}
