package places

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/catalog"
)

// The catalog is told of devices outside the directory, and of no others; each is told once whose it is. A device
// that is added and could not be committed is forgotten.
func TestOwn(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	in := Device{ID: [16]byte{1}, Path: filepath.Join(dir, "device-0")}
	out := Device{ID: [16]byte{2}, Path: filepath.Join(outside, "nvme")}
	gone := Device{ID: [16]byte{3}, Path: filepath.Join(outside, "gone"), Removed: true}
	p := Of(dir, [16]byte{9}, catalog.Owner{}, false)
	c, err := p.Own([]Device{in, out, gone})
	require.NoError(t, err)
	require.NotNil(t, c.Row)
	require.NotZero(t, c.Row.ID, "the directory has a name of its own")
	require.Empty(t, c.Was)
	require.Equal(t, 1, p.Outside())

	_, told := p.Stamp(in.ID)
	require.False(t, told, "it lies in the directory")
	o, told := p.Stamp(out.ID)
	require.True(t, told)
	require.Equal(t, c.Row.ID, o.ID)
	p.Stamped(out.ID)
	_, told = p.Stamp(out.ID)
	require.False(t, told)
	row := *p.Row()
	c, err = p.Own([]Device{in, out, gone})
	require.NoError(t, err)
	require.Nil(t, c.Row, "the catalog says so already")

	require.Nil(t, p.Add([16]byte{4}, filepath.Join(dir, "device-1")))
	require.NotNil(t, p.Add([16]byte{5}, filepath.Join(outside, "more")))
	require.Equal(t, 2, p.Outside())
	p.Forget([16]byte{5})
	require.Equal(t, 1, p.Outside())

	moved := Of(t.TempDir(), [16]byte{9}, row, true)
	c, err = moved.Own([]Device{out})
	require.NoError(t, err)
	require.Equal(t, row.Path, c.Was)
}
