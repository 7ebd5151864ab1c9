package commit

import (
	"errors"
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

// rowsOf are rows in a catalog of its own, with one at each of list. It refuses what refuse says.
func rowsOf(t *testing.T, refuse func() error, list ...layout.Location) *Rows {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	c, err := catalog.Open("catalog", catalog.Options{FS: vfs.NewMem(), Logger: log, Timeout: time.Minute, Refuse: refuse})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	b := c.NewBatch()
	for _, l := range list {
		b.PutBlock(l, []byte("a record"))
	}
	require.NoError(t, c.Commit(t.Context(), b, false))
	r := New(log)
	r.Open(Parts{Context: t.Context(), Catalog: c, Root: watermark.New(func() catalog.StoreState { return catalog.StoreState{} })})
	return r
}

func has(t *testing.T, r *Rows, l layout.Location) bool {
	t.Helper()
	_, err := r.Catalog.Block(t.Context(), l, nil)
	if err != nil {
		require.Equal(t, skep.NotFound, skep.KindOf(err))
	}
	return err == nil
}

// A row whose deletion is refused is owed, and goes with the next commit of rows, or before anybody is told that
// something is gone.
func TestOwedRowsGoWithTheNextCommit(t *testing.T) {
	t.Parallel()
	full := &skep.Error{Op: "commit", Kind: skep.Full}
	var refusal error
	a, b, c := layout.Location{Group: 1, Page: 1}, layout.Location{Group: 1, Page: 2}, layout.Location{Group: 2, Page: 1}
	r := rowsOf(t, func() error { return refusal }, a, b, c)

	refusal = full
	r.changes.Lock()
	require.Error(t, r.forgotten(a))
	require.Error(t, r.forgotten(b))
	r.changes.Unlock()
	require.Equal(t, 2, r.Owed())
	require.True(t, has(t, r, a))
	require.Error(t, r.Settle(t.Context()), "nobody is told that they are gone")
	require.NoError(t, r.Failed(), "it did not happen: the store goes on")

	refusal = nil
	r.changes.Lock()
	require.NoError(t, r.forgotten(c))
	r.changes.Unlock()
	require.Zero(t, r.Owed())
	for _, l := range []layout.Location{a, b, c} {
		require.False(t, has(t, r, l))
	}
	require.NoError(t, r.Settle(t.Context()))
}

// A commit of which it is not known whether it happened fails the store; the first reason is kept.
func TestACommitInDoubtFailsTheStore(t *testing.T) {
	t.Parallel()
	r := rowsOf(t, nil)
	require.NoError(t, r.Unsure(nil))
	doubt := errors.New("the disk is gone")
	require.ErrorIs(t, r.Unsure(doubt), doubt)
	require.Error(t, r.Unsure(errors.New("another")))
	require.Equal(t, doubt, r.Failed())
}
