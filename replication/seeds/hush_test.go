package seeds

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire"
)

// Once a map is found the other addresses are asked no more. Where they are asked again it is by clients that are open.
func TestAddressesAreAskedAgain(t *testing.T) {
	t.Parallel()
	open := func(addr string) (*wire.Client, error) { return wire.NewClient(wire.Options{Addr: addr}) }
	dir := "unix:" + t.TempDir()
	first, err := open(dir + "/a")
	require.NoError(t, err)
	defer first.Close()
	l := New(Options{Addrs: []string{dir + "/a", dir + "/b"}, First: first, Open: open,
		Start: func(f func()) bool { f(); return true }})
	defer l.Close()
	for range 2 {
		ask, err := l.tellers()
		require.NoError(t, err)
		require.Len(t, ask, 2)
		_, err = ask[1].From.ClusterMap(t.Context())
		require.ErrorIs(t, err, skep.Unavailable, "nobody is there")
		l.hush()
	}
}
