package watermark

import (
	"context"
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/catalog"
)

// The durable watermark stays below every append that is under way.
func TestMarkStopsBelowWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	r := New(nil)
	r.appends.underway = map[uint64]struct{}{5: {}, 9: {}}
	require.Equal(t, uint64(4), r.appends.low(20))
	require.Equal(t, uint64(4), r.appends.low(7))
	require.Equal(t, uint64(3), r.appends.low(3), "what began later does not matter")
	r.End(5, 0)
	require.Equal(t, uint64(8), r.appends.low(20))
	r.End(9, 0)
	require.Equal(t, uint64(20), r.appends.low(20))
}

// held is a catalog whose commits wait for release, once they have said on at that they are there, or are refused.
type held struct {
	*catalog.Catalog
	at, release chan struct{}
	refuse      error
	early       error // of commits that have not begun
}

func (c *held) Refuses(string) error { return c.early }

func (c *held) Commit(ctx context.Context, b *catalog.Batch, sync bool) error {
	if c.at != nil {
		c.at <- struct{}{}
		<-c.release
	}
	if c.refuse != nil {
		return c.refuse
	}
	return c.Catalog.Commit(ctx, b, sync)
}

func open(t *testing.T) (*Root, *held) {
	t.Helper()
	c, err := catalog.Open("catalog", catalog.Options{FS: vfs.NewMem()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	r := New(func() catalog.StoreState { return catalog.StoreState{Epoch: 3, NextGroup: 7} })
	return r, &held{Catalog: c}
}

func (c *held) row(t *testing.T) catalog.StoreState {
	t.Helper()
	st, err := c.Store(t.Context())
	require.NoError(t, err)
	return st
}

func none(error) error { return nil }

func same(err error) error { return err }

// What reads numbers does not wait for a commit, which waits for a drive; another root row is not made before it.
func TestNothingWaitsForTheRow(t *testing.T) {
	t.Parallel()
	r, c := open(t)
	c.at, c.release = make(chan struct{}), make(chan struct{})
	done := make(chan error, 2)
	go func() {
		done <- r.SaveNumbers(context.Background(), c, c.NewBatch(), Numbers{5, 9}, same)
	}()
	<-c.at
	require.Equal(t, Numbers{}, r.Numbers(), "they are not committed")
	seq := r.Next()
	require.Equal(t, seq, r.Last())
	r.End(r.Begin(), 10)
	require.Equal(t, int64(10), r.Unflushed())
	require.Zero(t, r.Marked())
	require.False(t, r.row.TryLock(), "no other row is made")
	go func() { done <- r.Save(context.Background(), c, c.NewBatch(), true) }()
	c.release <- struct{}{}
	<-c.at // the second
	require.Equal(t, Numbers{5, 9}, r.Numbers(), "the second has what the first made")
	c.release <- struct{}{}
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	row := c.row(t)
	require.Equal(t, uint32(5), row.NextNamespace)
	require.Equal(t, uint32(9), row.NextInstance)
	require.Equal(t, r.Last()+1, row.NextSeq)
	require.Equal(t, uint64(3), row.Epoch)
	require.Equal(t, uint32(7), row.NextGroup)
}

// Numbers that the catalog refused are not given out.
func TestNumbersThatAreRefused(t *testing.T) {
	t.Parallel()
	r, c := open(t)
	r.PassNumbers(Numbers{2, 8})
	r.PassNumbers(Numbers{4, 6})
	require.Equal(t, Numbers{4, 8}, r.Numbers())
	c.refuse = &skep.Error{Op: "commit", Kind: skep.Full}
	require.ErrorIs(t, r.SaveNumbers(t.Context(), c, c.NewBatch(), Numbers{5, 9}, same), c.refuse)
	require.Equal(t, Numbers{4, 8}, r.Numbers())
	require.NoError(t, r.SaveNumbers(t.Context(), c, c.NewBatch(), Numbers{5, 9}, none), "who says what becomes of it decides")
	require.Equal(t, Numbers{5, 9}, r.Numbers())
}

// The watermark moves behind a flush and its own commit, and logs say no more than the catalog.
func TestTheMarkFollowsTheFlush(t *testing.T) {
	t.Parallel()
	r, c := open(t)
	r.Load(catalog.StoreState{NextSeq: 20, FlushedSeq: 11})
	require.Equal(t, uint64(11), r.Marked())
	under := r.Begin()
	r.End(r.Begin(), 100)
	bad := errors.New("a drive")
	require.ErrorIs(t, r.Advance(t.Context(), c, func(context.Context) error { return bad }), bad)
	require.Equal(t, int64(100), r.Unflushed(), "it is to be flushed yet")
	require.Equal(t, uint64(11), r.State(Numbers{}, false).FlushedSeq)

	flush := func(context.Context) error {
		r.End(r.Begin(), 7) // comes too late for this flush
		return nil
	}
	c.refuse = &skep.Error{Op: "commit", Kind: skep.Full}
	require.Error(t, r.Advance(t.Context(), c, flush))
	require.Equal(t, uint64(11), r.Marked())
	require.Equal(t, int64(107), r.Unflushed(), "no mark says that any of it is flushed")
	c.refuse = nil
	require.NoError(t, r.Advance(t.Context(), c, flush))
	require.Equal(t, under-1, r.Marked())
	require.Equal(t, under-1, c.row(t).FlushedSeq)
	require.Equal(t, int64(7), r.Unflushed())

	r.End(under, 0)
	r.Owe()
	require.Equal(t, int64(8), r.Unflushed())
	top := r.Last()
	require.NoError(t, r.Advance(t.Context(), c, func(context.Context) error { return nil }))
	require.Equal(t, top, r.Marked())
	require.Zero(t, r.Unflushed())

	r.Pass(top + 5)
	r.Pass(top)
	require.Equal(t, top+6, r.Next())
	row := r.Close(true)
	require.True(t, row.Clean)
	require.Equal(t, top+6, row.FlushedSeq)
	require.Equal(t, top+7, row.NextSeq)
	r.Reset()
	require.Zero(t, r.Last())
}

// What was made before a call of Settle is synced when it returns, by whoever did it. A sync that fails settles
// nothing.
func TestWhatIsMadeIsSettledOnce(t *testing.T) {
	t.Parallel()
	var u Unsynced
	syncs := 0
	sync := func() error { syncs++; return nil }
	require.NoError(t, u.Settle(sync))
	require.Zero(t, syncs, "nothing was made")
	u.Add()
	bad := errors.New("a drive")
	require.ErrorIs(t, u.Settle(func() error { return bad }), bad)
	require.NoError(t, u.Settle(func() error {
		u.Add() // too late for this one
		return u.Settle(sync)
	}))
	require.Equal(t, 1, syncs)
	require.NoError(t, u.Settle(sync))
	require.Equal(t, 1, syncs, "the inner one was told of both")
	u.Add()
	require.NoError(t, u.Settle(sync))
	require.Equal(t, 2, syncs)
}

// What the catalog would refuse does not wait for the commit under way, and leaves no batch that could be committed
// without the root row.
func TestWhatIsRefusedWaitsForNoRow(t *testing.T) {
	t.Parallel()
	r, c := open(t)
	c.early = &skep.Error{Op: "commit", Kind: skep.ReadOnly}
	r.row.Lock()
	defer r.row.Unlock()
	first, second := c.NewBatch(), c.NewBatch()
	require.ErrorIs(t, r.Save(t.Context(), c, first, true), skep.ReadOnly)
	require.ErrorIs(t, r.SaveNumbers(t.Context(), c, second, Numbers{5, 9}, same), skep.ReadOnly)
	require.Equal(t, Numbers{}, r.Numbers())
	for _, b := range []*catalog.Batch{first, second} {
		require.ErrorIs(t, c.Catalog.Commit(t.Context(), b, true), skep.Invalid)
	}
}
