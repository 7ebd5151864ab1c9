//go:build linux

package sim

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
)

// What one server's GPU shares, another server's finds (two Worlds stand for two
// processes), and goes on finding when the first has freed it.
func TestShared(t *testing.T) {
	t.Parallel()
	lender, borrower := world(t, 1, 1).Device(0), world(t, 2, 2)
	mem, f, err := lender.AllocShared(3 << 20)
	require.NoError(t, err)
	defer f.Close()
	require.EqualValues(t, 4<<20, mem.Size())

	mine, theirs := borrower.Device(0), borrower.Device(1)
	require.NoError(t, mine.EnablePeer(theirs))
	lent := must[gpu.Memory](t)(theirs.Import(f, 3<<20))
	s := must[gpu.Stream](t)(mine.NewStream())
	want, got := pattern(1<<20, 3), make([]byte, 1<<20)
	s.CopyIn(gpu.Place{Memory: lent, Offset: 2 << 20}, want)
	require.NoError(t, s.Sync(soon(t)))
	require.Equal(t, want, Bytes(gpu.Place{Memory: mem, Offset: 2 << 20}, 1<<20))
	require.NoError(t, mem.Free())
	s.CopyOut(got, gpu.Place{Memory: lent, Offset: 2 << 20})
	require.NoError(t, s.Sync(soon(t)))
	require.Equal(t, byte(poison), got[0], "freed by its owner")

	// A copy that comes after the memory is gone is the device's error and touches nothing.
	s.CopyOut(got, gpu.Place{Memory: lent})
	require.NoError(t, lent.Free())
	require.ErrorIs(t, s.Sync(soon(t)), skep.DeviceFailed)

	_, err = theirs.Import(f, 5<<20)
	require.ErrorIs(t, err, skep.Invalid)
	plain, err := os.Create(filepath.Join(t.TempDir(), "file"))
	require.NoError(t, err)
	defer plain.Close()
	_, err = theirs.Import(plain, 1)
	require.ErrorIs(t, err, skep.Invalid, "not a memfd")
	_, _, err = lender.AllocShared(65 << 20)
	require.ErrorIs(t, err, skep.Invalid)
}
