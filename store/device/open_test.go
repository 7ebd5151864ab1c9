package device_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/device/devicetest"
)

func TestOpenRefusesBadArguments(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "dev")
	for _, c := range []struct {
		size  int64
		o     device.Options
		field string
	}{
		{0, device.Options{}, "size"},
		{-4096, device.Options{}, "size"},
		{4097, device.Options{}, "size"},
		{4096, device.Options{Backend: "tape"}, "Options.Backend"},
		{4096, device.Options{QueueDepth: -1}, "Options.QueueDepth"},
		{4096, device.Options{QueueDepth: 1 << 20}, "Options.QueueDepth"},
		{4096, device.Options{Workers: -1}, "Options.Workers"},
		{4096, device.Options{CloseTimeout: -1}, "Options.CloseTimeout"},
		{4096, device.Options{ReadOnly: true}, "Options.ReadOnly"},
	} {
		_, err := device.Create(path, c.size, c.o)
		var arg *device.ArgError
		require.ErrorAs(t, err, &arg)
		require.Equal(t, c.field, arg.Field)
		require.NoFileExists(t, path)
	}
	_, err := device.Open(path, device.Options{})
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = device.Open(t.TempDir(), device.Options{})
	require.Error(t, err, "a directory")
}

func TestCreateNeverTouchesWhatIsThere(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "dev")
	require.NoError(t, os.WriteFile(path, []byte("precious"), 0o600))
	_, err := device.Create(path, 4096, device.Options{})
	require.ErrorIs(t, err, os.ErrExist)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "precious", string(b))
}

func TestOpenFindsWhatWasWritten(t *testing.T) {
	t.Parallel()
	ctx := devicetest.Context(t)
	d := create(t, 1<<20, device.Options{WriteZeros: true})
	path := d.Info().Path
	want := devicetest.Random(devicetest.RNG(t), 1<<20)
	require.NoError(t, device.WriteAt(ctx, d, want, 0))
	require.NoError(t, device.Sync(ctx, d))
	require.NoError(t, d.Close())

	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	require.NoError(t, err)
	_, err = f.WriteString("a tail that is no whole page")
	require.NoError(t, err)
	require.NoError(t, f.Close())

	d, err = device.Open(path, device.Options{ReadOnly: true})
	require.NoError(t, err)
	defer d.Close()
	require.EqualValues(t, 1<<20, d.Size(), "rounded down")
	got := device.AlignedBuffer(1 << 20)
	require.NoError(t, device.ReadAt(ctx, d, got, 0))
	require.True(t, bytes.Equal(want, got))
	require.ErrorIs(t, device.WriteAt(ctx, d, got, 0), syscall.EROFS)
	require.ErrorIs(t, device.Sync(ctx, d), syscall.EROFS)
	require.ErrorIs(t, d.Grow(2<<20), device.ErrInvalid)
}

func TestInfoSaysWhatWasGivenUp(t *testing.T) {
	t.Parallel()
	d := create(t, 4096, device.Options{Buffered: true})
	defer d.Close()
	i := d.Info()
	require.Contains(t, i.Reason, "buffered")
	require.False(t, i.Direct)
	require.False(t, i.Simulated)
	require.False(t, i.Raw)
	if i.Backend == device.Pool {
		require.Contains(t, i.Reason, "iouring", "why not the better backend")
	}
}

func TestAutoIsIOUringOrSaysWhyNot(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "dev")
	d, err := device.Create(path, 4096, device.Options{Backend: device.IOUring})
	if err != nil {
		require.ErrorIs(t, err, device.ErrUnavailable)
		require.NoFileExists(t, path)
		return
	}
	require.Equal(t, device.IOUring, d.Info().Backend)
	require.NoError(t, d.Close())
}

func TestAFileCutShort(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{device.Auto, device.Pool} {
		d := create(t, 1<<20, device.Options{Backend: backend})
		require.NoError(t, os.Truncate(d.Info().Path, 16384))
		buf := device.AlignedBuffer(32768)
		err := device.ReadAt(devicetest.Context(t), d, buf, 0)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		var where *device.IOError
		require.True(t, errors.As(err, &where))
		require.Equal(t, d.Info().Path, where.Path)
		require.EqualValues(t, 1, d.Stats().Errors())
		require.NoError(t, d.Close())
	}
}
