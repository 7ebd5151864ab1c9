package loan_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/gpu/loan"
	"github.com/skepkv/skep/gpu/sim"
)

// A dial says of a socket of another type only that it is one: somebody listens there all the same.
func TestALenderLeavesASocketThatIsUsedAlone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "skep.sock")
	server, err := net.Listen("unix", path)
	require.NoError(t, err)
	defer server.Close()
	before, err := os.Lstat(path)
	require.NoError(t, err)
	so := sim.H20()
	so.Devices, so.MemoryBytes = 1, 16<<20
	w, err := sim.New(so)
	require.NoError(t, err)
	d := w.Device(0)
	t.Cleanup(func() { _ = d.Close() })
	l, err := loan.Lend(loan.LenderOptions{Socket: path, Name: "model", Device: d,
		Unit: unit, Units: units, Floor: 1, Lease: time.Minute, Reclaim: time.Minute})
	if err == nil {
		t.Cleanup(func() { _ = l.Close() })
	}
	after, err2 := os.Lstat(path)
	require.NoError(t, err2)
	require.True(t, os.SameFile(before, after), "the socket of the server that listens there is gone")
	require.Error(t, err)
}
