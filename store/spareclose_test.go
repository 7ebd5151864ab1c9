package store

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// A store that is closed while it makes a spare is sound: no row is left of a group whose
// headers were not written.
func TestACloseWhileASpareIsMade(t *testing.T) {
	ctx := testContext(t)
	slow := errorfs.InjectorFunc(func(op errorfs.Op) error { // so that it is closed while a row is under way
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			time.Sleep(time.Millisecond)
		}
		return nil
	})
	for range 5 {
		o := small(tempRoot(t, "store"))
		o.CapacityBytes, o.CatalogFS, o.CatalogDir = 32<<20, errorfs.Wrap(vfs.NewMem(), slow), "/catalog"
		s, err := Open(ctx, o)
		require.NoError(t, err)
		sc := openSpace(t, s, "keys", skep.Durable, 1, false)
		putOne(t, s, sc, keyOf(1), content(keyOf(1), "a", 1, 9000))
		require.NoError(t, s.Close())
		s, err = Open(ctx, o)
		require.NoError(t, err)
		_, err = s.Delete(ctx, sc, []skep.Key{keyOf(1)}) // its tombstone opens a group, and spares are made
		require.NoError(t, err)
		require.NoError(t, s.Close())
		rep, err := Verify(ctx, o, VerifyOptions{})
		require.NoError(t, err)
		require.True(t, rep.Sound, "%v", rep.Faults)
	}
}
