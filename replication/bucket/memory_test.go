package bucket

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
)

// tight is a node's Store that lends no piece of memory that is larger than most, and only so many.
type tight struct {
	*memstore.Store
	most   int64
	pieces atomic.Int64
}

func (x *tight) Alloc(ctx context.Context, n int64) (skep.Memory, error) {
	why := error(nil)
	if n <= x.most {
		if x.pieces.Add(-1) >= 0 {
			return x.Store.Alloc(ctx, n)
		}
		<-ctx.Done()
		why = ctx.Err()
	}
	return nil, &skep.Error{Op: "alloc", Kind: skep.NoMemory, Field: "bytes", Value: n, Limit: x.most, Err: why}
}

func newTight(t *testing.T, o Options, most int64) (*node, *tight) {
	t.Helper()
	x := &tight{Store: memstore.New(memstore.Options{}), most: most}
	x.pieces.Store(1 << 20)
	s, err := New(x, o)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	n := &node{Store: s, t: t, own: x.Store}
	_ = n.turn()
	return n, x
}

// Blocks for which no memory can be had are left out, and neither paid for nor tried again: what comes after them, of
// others too, is sent. Blocks that can only be had one by one are read so.
func TestBlocksThatAreTooLarge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // no time passes
		b := newShelf()
		o := options(b)
		o.Budget.SendADay = 1 << 40
		n, _ := newTight(t, o, 2*blockSize)
		n.budget.sent.has = n.budget.sent.most
		large := shape
		large.Bytes = 4 * blockSize
		info, err := n.OpenNamespace(t.Context(),
			skep.NamespaceSpec{Tenant: "large", Name: "n", Model: "m", Shape: large, Chained: true})
		require.NoError(t, err)
		n.ns = info.ID
		r := &skep.PutRequest{Scope: n.scope()}
		for _, k := range chain(1, 3) {
			part := skep.Part{Name: skep.PartKV, Bytes: storetest.Payload(k, skep.PartKV, int(large.Bytes))}
			r.Blocks = append(r.Blocks, skep.Block{Key: k, Parts: []skep.Part{part}})
		}
		_, err = n.Put(t.Context(), r)
		require.NoError(t, err)
		n.open("n")
		n.put(chain(2, 8))
		n.look()
		require.EqualValues(t, 8, n.Usage().SentBlocks)
		paid := n.budget.sent.most - n.budget.sent.has
		require.InDelta(t, n.Usage().SentBytes, paid, .1)
		b.set(func() { clear(b.calls) })
		n.look()
		require.Zero(t, b.calls["put"])
		require.Equal(t, paid, n.budget.sent.most-n.budget.sent.has)
		require.Empty(t, b.named(announcedDir))
	})
}

// What is deleted goes from the drives while an object waits for memory, and the deletion is made soon.
func TestADeletionWhileThereIsNoMemory(t *testing.T) {
	t.Parallel()
	keys := chain(1, 8)
	for name, remove := range map[string]func(ctx context.Context, n *node) error{
		"keys":  func(ctx context.Context, n *node) error { _, err := n.Delete(ctx, n.scope(), keys); return err },
		"purge": func(ctx context.Context, n *node) error { return n.Purge(ctx, skep.Purge{Tenant: "t"}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n, x := newTight(t, options(newShelf()), 1<<20)
				n.open("n")
				n.put(keys)
				x.pieces.Store(0)
				told := make(chan error, 1)
				n.kick <- told
				synctest.Wait()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				require.ErrorIs(t, remove(ctx, n), skep.Deadline)
				require.Empty(t, n.keys())
				require.Empty(t, told, "it waits yet")
				require.NoError(t, remove(t.Context(), n))
				require.ErrorIs(t, <-told, skep.NoMemory)
				require.Zero(t, n.find(keys))
			})
		})
	}
}

// What was read before there was no more memory is sent.
func TestWhatWasReadBeforeThereWasNoMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newShelf()
		n, x := newTight(t, options(b), 1<<20)
		n.open("n")
		n.put(chain(1, 4))
		n.put(chain(2, 4))
		x.pieces.Store(1)
		n.look()
		require.EqualValues(t, 4, n.Usage().SentBlocks)
	})
}
