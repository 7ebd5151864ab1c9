package serve

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A file that is a pipe without a writer is empty, and keeps nobody waiting: not a reload, and not a server that ends
// meanwhile. What a pipe has is read.
func TestAPipeKeepsNobodyWaiting(t *testing.T) {
	t.Parallel()
	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	none := func(string) (string, bool) { return "", false }

	c := local(t)
	c.Store.EncryptionKeyFile = fifo
	_, wrong := c.encryptionKeys(none)
	require.Len(t, wrong, 1)
	c.Credentials = []CredentialConfig{{Name: "a", Tenant: "t", Rights: []string{"read"}, TokenFile: fifo}}
	_, wrong = c.credentials(none)
	require.Len(t, wrong, 1)
	_, err := tokenIn("peers.token_file", fifo)
	require.Error(t, err)
	_, err = keyPair(fifo, fifo)
	require.Error(t, err)
	c.TLS.Cert, c.Peers.ServerCA = "x", fifo
	_, err = c.peerTLS()
	require.ErrorContains(t, err, "nobody has written to this pipe")

	r, w, err := os.Pipe() // as a shell has it for <(command)
	require.NoError(t, err)
	defer r.Close()
	_, err = w.WriteString(token)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	got, err := tokenIn("peers.token_file", fmt.Sprintf("/dev/fd/%d", r.Fd()))
	require.NoError(t, err)
	require.Equal(t, token, got)
}
