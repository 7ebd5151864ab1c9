package members

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/space"
)

// A short number is an index, though another device's id begins with it: six digits of an id are needed to name that.
func TestAnIndexIsNoBeginningOfAnID(t *testing.T) {
	t.Parallel()
	m := New(Config{Context: t.Context(), Named: true})
	m.Opened = []*space.Drive{
		{Index: 0, Path: "a", ID: [16]byte{0x1a, 0xbc, 0xde}},
		{Index: 1, Path: "b", ID: [16]byte{0x2a, 0xbc, 0xde}},
	}
	for name, path := range map[string]string{"0": "a", "1": "b", "1abcde": "a", "2abcde00": "b", "a": "a"} {
		d, err := m.Find("drain device", name)
		require.NoError(t, err, name)
		require.Equal(t, path, d.Path, name)
	}
	for _, name := range []string{"2", "1a", "1abcd", "1abcdf", ""} {
		_, err := m.Find("drain device", name)
		require.ErrorIs(t, err, skep.NotFound, name)
	}
}
