package bucket

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/tools/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// What the drives lose is found in the bucket, comes back, and is on the drives again. Another node, and the same one
// after it has lost its directory, find it, too.
func TestWhatIsEvictedComesBack(t *testing.T) {
	t.Parallel()
	b := newShelf()
	n := newNode(t, options(b), 0)
	keys := chain(1, 40)
	n.put(keys)
	n.look()
	require.Len(t, b.named(blocksDir), 5)
	require.Equal(t, 40, n.find(keys))
	n.evict()
	r, err := n.Lookup(t.Context(), &skep.LookupRequest{Scope: n.scope(), Keys: keys, Tiers: true})
	require.NoError(t, err)
	require.Equal(t, 40, r.Blocks)
	require.Equal(t, skep.TierObject, r.Tiers[39])
	require.True(t, r.LeaseDenied, "only drives keep promises")
	require.Equal(t, 40, n.load(keys))
	require.Len(t, n.keys(), 40)
	u := n.Usage()
	require.EqualValues(t, 40, u.LoadedBlocks)
	require.EqualValues(t, 5, u.LoadedCalls)
	require.Equal(t, 40, n.load(keys))
	require.Equal(t, u.LoadedCalls, n.Usage().LoadedCalls, "nothing is fetched twice")

	other := newNode(t, options(b), 0)
	other.look()
	require.Equal(t, 40, other.find(keys))
	require.Equal(t, 40, other.load(keys))
}

// What is on the drives is loaded from there, and only what follows is fetched.
func TestOnlyWhatTheDrivesLackIsFetched(t *testing.T) {
	t.Parallel()
	b := newShelf()
	n := newNode(t, options(b), 0)
	keys := chain(1, 32)
	n.put(keys)
	n.look()
	_, err := n.own.Delete(t.Context(), n.scope(), keys[16:])
	require.NoError(t, err)
	ses, err := n.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{{Scope: n.scope(), Keys: keys}}})
	require.NoError(t, err)
	got := map[int]skep.Tier{}
	require.NoError(t, skep.Drain(t.Context(), ses, func(c *skep.Chunk) error {
		require.NoError(t, c.Err)
		require.Equal(t, storetest.Payload(keys[c.Block], skep.PartKV, blockSize), c.AppendTo(nil))
		got[c.Block] = c.Tier
		return nil
	}))
	require.NoError(t, ses.Close(t.Context()))
	require.Len(t, got, 32)
	for i, tier := range got {
		require.Equal(t, i >= 16, tier == skep.TierObject, "block %d", i)
	}
	require.EqualValues(t, 16, n.Usage().LoadedBlocks)
}

// Where computing is quicker than fetching, the bucket's blocks are left out.
func TestFetchingIsDeclinedWhereComputingIsQuicker(t *testing.T) {
	t.Parallel()
	b := newShelf()
	o := options(b)
	n := newNode(t, o, 0)
	keys := chain(1, 8)
	n.put(keys)
	n.look()
	n.evict()
	look := func(perToken time.Duration) skep.LookupResult {
		cost := &skep.RecomputeCost{PerToken: perToken}
		r, err := n.Lookup(t.Context(), &skep.LookupRequest{Scope: n.scope(), Keys: keys, Cost: cost})
		require.NoError(t, err)
		return r
	}
	require.Zero(t, look(time.Microsecond).Blocks)
	r := look(time.Second)
	require.Equal(t, 8, r.Blocks)
	require.True(t, r.Pays)
	require.GreaterOrEqual(t, r.Estimate, firstGuess)

	o.Recompute = &skep.RecomputeCost{PerToken: time.Microsecond}
	quick := newNode(t, o, 0)
	quick.look()
	require.Zero(t, quick.find(keys))
}

// A block is worth sending once a lookup has found it, and from when the drives are filled so far.
func TestWhatIsSent(t *testing.T) {
	t.Parallel()
	b := newShelf()
	o := options(b)
	o.Unfound, o.BeginAt = false, .5
	n := newNode(t, o, 64*blockSize)
	found, unfound := chain(1, 16), chain(2, 15)
	n.put(found)
	n.put(unfound)
	require.Equal(t, 16, n.find(found))
	n.look()
	require.Empty(t, b.named(blocksDir), "there is room yet")
	n.put(chain(3, 8))
	n.look()
	require.EqualValues(t, 16, n.Usage().SentBlocks)
	n.look()
	require.EqualValues(t, 16, n.Usage().SentBlocks, "nothing is sent twice")
}

// What is deleted or purged stays so: at once, after a restart, and at another node that hears of it.
func TestWhatIsDeletedStaysSo(t *testing.T) {
	t.Parallel()
	keys := chain(1, 24)
	for name, remove := range map[string]func(n *node) error{
		"keys":             func(n *node) error { _, err := n.Delete(n.t.Context(), n.scope(), keys[:5]); return err },
		"namespace purged": func(n *node) error { return n.Purge(n.t.Context(), skep.Purge{Namespace: n.ns}) },
		"tenant":           func(n *node) error { return n.Purge(n.t.Context(), skep.Purge{Tenant: "t"}) },
		"model":            func(n *node) error { return n.Purge(n.t.Context(), skep.Purge{Model: "m"}) },
		"namespace deleted": func(n *node) error {
			err := n.DeleteNamespace(n.t.Context(), n.ns)
			n.open("n")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newShelf()
			n, other := newNode(t, options(b), 0), newNode(t, options(b), 0)
			n.put(keys)
			n.look()
			other.look()
			n.evict()
			require.Equal(t, 24, other.find(keys))
			b.set(func() { b.away = true })
			require.Error(t, remove(n), "the bucket does not answer: it is to be made again")
			b.set(func() { b.away = false })
			require.NoError(t, remove(n))
			require.NoError(t, remove(other))
			again := newNode(t, options(b), 0)
			for i, n := range []*node{n, other, again} {
				n.look()
				require.Zero(t, n.find(keys), "node %d", i)
				require.Zero(t, n.load(keys), "node %d", i)
			}
			if name == "keys" {
				again.put(keys[:5])
				require.Equal(t, 24, again.find(keys), "what follows is there yet")
			}
		})
	}
}

// What is deleted while it is on its way to the bucket does not come back, whatever becomes of the call that puts it.
func TestADeletionWhileAnObjectIsOnItsWay(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		b := newShelf()
		n := newNode(t, options(b), 0)
		keys := chain(1, 8)
		n.put(keys)
		deleted := make(chan error, 1)
		b.set(func() {
			b.before = func(call, name string) {
				if _, dir, _, _ := split(name); call != "put" || dir != blocksDir {
					return
				}
				b.set(func() { b.before, b.once = nil, lost })
				begun := make(chan struct{})
				go func() {
					close(begun)
					_, err := n.Delete(t.Context(), n.scope(), keys)
					deleted <- err
				}()
				<-begun
			}
		})
		err := n.turn()
		require.Equal(t, lost, err != nil)
		require.NoError(t, <-deleted)
		again := newNode(t, options(b), 0)
		again.look()
		require.Zero(t, again.find(keys))
		require.Zero(t, n.find(keys))
	}
}

// What is deleted while it is fetched does not come back.
func TestADeletionWhileABlockIsFetched(t *testing.T) {
	t.Parallel()
	b := newShelf()
	n, keys := one(t, b)
	n.evict()
	b.set(func() {
		b.before = func(call, _ string) {
			if call != "get" {
				return
			}
			b.set(func() { b.before = nil })
			_, err := n.Delete(t.Context(), n.scope(), keys[4:])
			require.NoError(t, err)
		}
	})
	require.Equal(t, 4, n.load(keys))
	require.Len(t, n.keys(), 4)
}

// A node that has heard of a deletion takes nothing of what another one, which has not yet, has in the bucket.
func TestANodeThatHearsLater(t *testing.T) {
	t.Parallel()
	b := newShelf()
	late, n := newNode(t, options(b), 0), newNode(t, options(b), 0)
	keys, more := chain(1, 8), chain(2, 8)
	late.put(append(keys, more...)[:8])
	_, err := n.Delete(t.Context(), n.scope(), keys)
	require.NoError(t, err)
	late.look() // it sends what is to be deleted
	n.look()
	require.Zero(t, n.find(keys))
	_, err = late.Delete(t.Context(), late.scope(), keys)
	require.NoError(t, err)
	late.put(more)
	require.NoError(t, n.Purge(t.Context(), skep.Purge{Tenant: "t"}))
	late.look()
	n.look()
	require.Zero(t, n.find(more))
}

// A deletion concerns what another node has sent a moment ago, and then was lost.
func TestADeletionLooksForWhatOthersSent(t *testing.T) {
	t.Parallel()
	b := newShelf()
	lost, n := newNode(t, options(b), 0), newNode(t, options(b), 0)
	keys := chain(1, 8)
	n.look()
	n.look() // it knows the namespace, of which there is nothing yet
	lost.put(keys)
	lost.look()
	_, err := n.Delete(t.Context(), n.scope(), keys)
	require.NoError(t, err)
	again := newNode(t, options(b), 0)
	again.look()
	require.Zero(t, again.find(keys))
}

// Bytes that were changed are a miss, and so is an object that is gone.
func TestWhatIsDamagedIsAMiss(t *testing.T) {
	t.Parallel()
	b := newShelf()
	n := newNode(t, options(b), 0)
	keys := chain(1, 16)
	n.put(keys)
	n.look()
	n.evict()
	b.set(func() { b.spoil = func(_ string, bytes []byte) { bytes[len(bytes)/2] ^= 1 } })
	require.Less(t, n.load(keys), 8)
	require.Positive(t, n.Usage().Damaged)
	b.set(func() { b.spoil = nil; clear(b.objects) })
	require.Less(t, n.load(keys), 8)
	again := newNode(t, options(b), 0)
	again.look()
	require.Zero(t, again.find(keys))
}

// Without the key an object is nothing, and its name tells nothing.
func TestAnotherKey(t *testing.T) {
	t.Parallel()
	b := newShelf()
	_, keys := one(t, b)
	o := options(b)
	o.Key = make([]byte, KeySize)
	other := newNode(t, o, 0)
	other.look()
	require.Zero(t, other.find(keys))
	require.Positive(t, other.Usage().Damaged)
	for name, body := range b.objects {
		require.NotContains(t, string(body), "opaque", name)
		require.NotContains(t, string(body), string(keys[3][:]), name)
		require.NotContains(t, string(body), string(storetest.Payload(keys[3], skep.PartKV, blockSize)[:64]), name)
	}
}

// More bytes than there may be: the oldest objects go.
func TestTheOldestGo(t *testing.T) {
	t.Parallel()
	b := newShelf()
	o := options(b)
	o.MaxBytes = 3 * 10 * blockSize
	n := newNode(t, o, 0)
	first, second := chain(1, 16), chain(2, 16)
	n.put(first)
	n.look()
	old := b.named(blocksDir)
	for _, o := range n.all()[0].objects { // nothing else looks now
		o.used.Add(-1000)
	}
	n.evict()
	n.put(second)
	n.look()
	n.look()
	require.Len(t, b.named(blocksDir), 3)
	require.Subset(t, b.named(blocksDir), old, "none goes before it has been there for an hour")
	n.stay = 0
	n.look()
	require.Len(t, b.named(blocksDir), 3)
	n.evict()
	require.Equal(t, 16, n.find(second))
	require.Less(t, n.find(first), 16)
}

// While the bucket does not answer, nothing of it is found; when it does again, it is.
func TestABucketThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	b := newShelf()
	n, keys := one(t, b)
	n.evict()
	b.set(func() { b.away = true })
	require.Zero(t, n.load(keys))
	require.Zero(t, n.find(keys))
	require.Error(t, n.Usage().Err)
	_, err := n.Delete(t.Context(), n.scope(), keys[:1])
	require.ErrorIs(t, err, skep.Unavailable)
	b.set(func() { b.away = false })
	n.look()
	require.Zero(t, n.find(keys), "the first is deleted")
	_, err = n.Delete(t.Context(), n.scope(), keys[:1])
	require.NoError(t, err)
	again := newNode(t, options(b), 0)
	again.look()
	require.Zero(t, again.find(keys))
}

// A budget that is used up has nothing sent, and nothing found that could not be fetched.
func TestABudget(t *testing.T) {
	t.Parallel()
	b := newShelf()
	o := options(b)
	o.Budget = Budget{SendADay: 1}
	n := newNode(t, o, 0)
	n.put(chain(1, 8))
	n.look()
	require.Empty(t, b.named(blocksDir), "a day's budget comes by the second")
	require.EqualValues(t, 8, n.Usage().Refused)

	for name, bad := range map[string]Budget{"rate": {Rate: -1}, "prices": {MoneyDay: 1}, "money": {MoneyDay: -1}} {
		o.Budget = bad
		_, err := New(memstore.New(memstore.Options{}), o)
		require.ErrorIs(t, err, skep.Invalid, name)
	}
}

// A chain that is stopped before its blocks were fetched ends in misses, and nothing is written to its memory.
func TestAChainIsStoppedBeforeItIsFetched(t *testing.T) {
	t.Parallel()
	b := newShelf()
	n := newNode(t, options(b), 0)
	keys := chain(1, 16)
	n.put(keys)
	n.look()
	n.evict()
	goOn := make(chan struct{})
	b.set(func() {
		b.before = func(call, _ string) {
			if call == "get" {
				<-goOn
			}
		}
	})
	mem := make([]byte, 16*blockSize)
	ses, err := n.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{{Scope: n.scope(), Keys: keys,
		Dest: skep.Destination{Memory: mem, Stride: blockSize}}}})
	require.NoError(t, err)
	require.NoError(t, ses.Stop(t.Context(), 0))
	close(goOn)
	misses := 0
	require.NoError(t, skep.Drain(t.Context(), ses, func(c *skep.Chunk) error {
		require.ErrorIs(t, c.Err, skep.Stopped)
		misses++
		return nil
	}))
	require.Equal(t, 16, misses)
	require.Equal(t, make([]byte, len(mem)), mem)
	require.NoError(t, ses.Close(t.Context()))
	_, err = ses.Next(t.Context(), make([]skep.Chunk, 1))
	require.True(t, errors.Is(err, skep.Closed), "%v", err)
}

func TestContract(t *testing.T) {
	t.Parallel()
	storetest.Test(t, func(t *testing.T, c storetest.Config) skep.Store { return behindShelf(t, c) })
}

func TestWrapper(t *testing.T) {
	t.Parallel()
	storetest.Wrapper(t, memstore.New(memstore.Options{}), func(t *testing.T, behind skep.Store) skep.Store {
		s, err := New(lists{behind, memstore.New(memstore.Options{})}, options(newShelf()))
		require.NoError(t, err)
		return s
	})
}

// lists is a Store that lists the blocks of another one.
type lists struct {
	skep.Store
	blockLister
}

// busy is a Store of which all that is put goes to a bucket at once.
type busy struct{ *Store }

func (b busy) Put(ctx context.Context, r *skep.PutRequest) ([]skep.PutResult, error) {
	out, err := b.Store.Put(ctx, r)
	told := make(chan error, 1)
	select {
	case b.kick <- told:
		<-told
	case <-b.life.Done():
	}
	return out, err
}

func behindShelf(t *testing.T, c storetest.Config) busy {
	t.Helper()
	o := options(newShelf())
	s, err := New(memstore.New(memstore.Options{CapacityBytes: c.CapacityBytes, TenantNamespaces: c.TenantNamespaces,
		TenantLeaseBytes: c.TenantLeaseBytes, TenantPinBytes: c.TenantPinBytes, PoisonReleased: true}), o)
	require.NoError(t, err)
	return busy{s}
}

func TestRandom(t *testing.T) {
	t.Parallel()
	storetest.Random(t, func(t *testing.T, c storetest.Config) skep.Store { return behindShelf(t, c) },
		storetest.RandomOptions{Ops: 1000})
}
