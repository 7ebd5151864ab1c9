package commit

import (
	"log/slog"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/watermark"
)

// A block that was committed durably and then refused, since the index had no room, is gone for good when its putter is
// told so: no crash brings it back.
func TestARefusedBlockIsNotBackAfterACrash(t *testing.T) {
	t.Parallel()
	fs, log := vfs.NewCrashableMem(), slog.New(slog.DiscardHandler)
	open := func(fs vfs.FS) *catalog.Catalog {
		c, err := catalog.Open("catalog", catalog.Options{FS: fs, Logger: log, Timeout: time.Minute})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, c.Close()) })
		return c
	}
	c := open(fs)
	r := New(log)
	r.Open(Parts{Context: t.Context(), Catalog: c,
		Root: watermark.New(func() catalog.StoreState { return catalog.StoreState{} })})
	at := layout.Location{Group: 1, Page: 1}
	b := c.NewBatch()
	b.PutBlock(at, []byte("a record"))
	require.NoError(t, c.Commit(t.Context(), b, true))

	require.NoError(t, r.takeBack([]*Block{{At: at}}, true))
	_, err := open(fs.CrashClone(vfs.CrashCloneCfg{})).Block(t.Context(), at, nil)
	require.ErrorIs(t, err, skep.NotFound)
}
