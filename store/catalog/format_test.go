package catalog

import (
	"encoding/binary"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// filesOf are the files of a catalog with what is in them. The one that is locked is not among them.
func filesOf(t *testing.T, fs vfs.FS) map[string]string {
	t.Helper()
	names, err := fs.List(testDir)
	require.NoError(t, err)
	out := map[string]string{}
	for _, name := range names {
		if name == "LOCK" {
			continue
		}
		b, err := readFile(fs, fs.PathJoin(testDir, name))
		require.NoError(t, err)
		out[name] = string(b)
	}
	return out
}

// A catalog of another format is as it was once it has been refused: also where its Pebble is of an older format,
// which an open for writing raises, so that the program that wrote it would not open it any more.
//
// Alone: goroutines of the whole process are counted.
func TestARefusedFormatIsNotWrittenTo(t *testing.T) {
	noLeaks(t)
	s := StoreState{NextSeq: 1}
	body := s.encode()
	binary.LittleEndian.PutUint32(body[len(rootMagic):], FormatVersion+1)
	key := []byte{rowStore}
	for _, flushed := range []bool{false, true} {
		fs := vfs.NewMem()
		require.NoError(t, fs.MkdirAll(testDir, 0o755))
		o := Options{FS: fs, Logger: quiet()}
		o.ensureDefaults()
		cache := pebble.NewCache(o.CacheBytes)
		p := pebbleOptions(&o, cache)
		p.FS, p.FormatMajorVersion = fs, pebble.FormatFlushableIngest
		p.Logger = pebbleLogger{newGuard(&o)}
		db, err := pebble.Open(testDir, p)
		require.NoError(t, err)
		require.NoError(t, db.Set(key, seal(key, body), pebble.Sync))
		if flushed {
			require.NoError(t, db.Flush())
		}
		require.NoError(t, db.Close())
		cache.Unref()

		before := filesOf(t, fs)
		_, err = Open(testDir, o)
		require.ErrorIs(t, err, skep.Version)
		require.Equal(t, before, filesOf(t, fs), "flushed %v", flushed)
	}
}
