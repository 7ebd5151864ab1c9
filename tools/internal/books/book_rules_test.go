//go:build unix

package books

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A book tells what may be there from what may not, whoever wrote it, and after its client was killed.
func TestABookKnowsWhatMayBeThere(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "book")
	b, err := openBook(path)
	require.NoError(t, err)
	defer func() { b.f.Close() }()
	one, two := value{1, 100}, value{2, 200}
	say := func(step string, v value) {
		require.NoError(t, b.write(entry{Key: "k", Step: step, Version: v.version, Size: v.size, Life: 1}))
	}
	is := func(v value) error { return b.check("k", valueOf("k", v), v.version > 0, false) }
	require.NoError(t, is(value{}))
	require.ErrorContains(t, is(one), "back", "nobody put it")
	say(asked, one)
	require.NoError(t, is(value{}))
	require.NoError(t, is(one))
	say(done, one)
	require.ErrorContains(t, is(value{}), "not there")
	say(asked, two)
	say(refused, two)
	for range 2 {
		require.NoError(t, is(one))
		require.NoError(t, is(two))
		require.ErrorContains(t, is(value{}), "not there")
		require.NoError(t, b.check("k", nil, false, true), "a cache")
		wrong := valueOf("k", one)
		wrong[50]++
		require.ErrorContains(t, b.check("k", wrong, true, true), "WRONG BYTES")
		require.ErrorContains(t, b.check("k", valueOf("other", one), true, true), "WRONG BYTES")
		require.NoError(t, b.f.Close()) // its client is killed, and another goes on
		b, err = openBook(path)
		require.NoError(t, err)
	}
	say(asked, value{})
	say(done, value{})
	require.ErrorContains(t, is(two), "version 2 is back")
	b.restarted(false)
	require.ErrorContains(t, is(two), "version 2 is back")
	b.restarted(true)
	require.NoError(t, is(two), "what a cache acknowledged just before a kill may be undone")
}
