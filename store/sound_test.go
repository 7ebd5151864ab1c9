package store

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/space"
)

// unsound says what is wrong with who owns which segment: every one belongs to one group
// or is free, once.
func unsound(s *Store) string {
	s.space.Inside().Lock()
	defer s.space.Inside().Unlock()
	type cell struct {
		drive   *space.Drive
		segment uint32
	}
	owner := map[cell]uint32{} // group, or 0 when free
	for g := range s.space.Inside().Groups.Each() {
		for i, d := range g.Drives {
			c := cell{d, g.Segments[i]}
			if other, ok := owner[c]; ok {
				return "segment " + itoa(int(c.segment)) + " of " + d.Path + " belongs to groups " + itoa(int(other)) + " and " + itoa(int(g.Num))
			}
			owner[c] = g.Num
		}
	}
	for _, d := range s.members.Opened {
		for _, n := range d.Free {
			if other, ok := owner[cell{d, n}]; ok {
				return "segment " + itoa(int(n)) + " of " + d.Path + " is free and belongs to group " + itoa(int(other)) + " (0: free twice)"
			}
			owner[cell{d, n}] = 0
		}
	}
	return ""
}

// A group whose headers could not be written leaves nothing behind that a later opening
// takes for a group.
func TestGroupThatCouldNotBeOpened(t *testing.T) {
	t.Parallel() // it waits
	for _, held := range []bool{false, true} {
		t.Run(map[bool]string{false: "the write failed", true: "the write hangs"}[held], func(t *testing.T) {
			s, r, o := openRig(t, func(o *Options) {
				o.SegmentBytes, o.CapacityBytes = 64<<10, 2*(12*64<<10+8<<10)
				if held {
					o.OpTimeout = 2 * time.Second // what hangs costs as much, and what does not must never take as long
				}
			})
			headers := device.Rule{Action: device.Fail, Kinds: device.Writes, Times: 3,
				Match: func(op *device.Op) bool { return (op.Offset-layout.SegmentOffset(0, 0))%(64<<10) == 0 }}
			if held {
				headers.Action = device.Hold
			}
			rule := r.faults[1].MustInject(headers)
			durable, cache := openSpace(t, s, "durable", skep.Durable, 1, true), openSpace(t, s, "cache", skep.Cache, 1, false)
			kept := chainKeys(1, 12)
			eventually(t, "a put succeeds", func() bool {
				return putRun(t, s, durable, kept, 8<<10)[len(kept)-1].Outcome != skep.Declined
			})
			if held {
				require.Empty(t, unsound(s))
				require.Positive(t, r.faults[1].Held())
			}
			require.Positive(t, rule.Fired())
			rule.Remove()
			for i := range 40 {
				putRun(t, s, cache, chainKeys(100+i, 4), 8<<10)
			}
			if held {
				r.faults[1].Release() // headers of groups that are not: where nobody is
				eventually(t, "writes end", func() bool { return r.faults[1].Stats().InFlight == 0 })
			}
			requireChain(t, s, durable, kept, 8<<10)
			eventually(t, "segments come back", func() bool { return unsound(s) == "" })
			require.NoError(t, s.Close())
			s, err := Open(context.Background(), o)
			require.NoError(t, err)
			require.Empty(t, unsound(s))
			for i := range 40 {
				putRun(t, s, cache, chainKeys(200+i, 4), 8<<10)
			}
			requireChain(t, s, durable, kept, 8<<10)
			_, reasons := requireRight(t, s, cache, chainKeys(239, 4), 8<<10)
			require.Zero(t, reasons[skep.Damaged])
			require.NoError(t, s.Close())
		})
	}
}

// crashRig opens a store whose crash can be taken at any moment when it is at rest.
func crashRig(t *testing.T, change func(o *Options)) (s *Store, r *rig, crash func(name string) Options) {
	fs := vfs.NewCrashableMem()
	s, r, o := openRig(t, func(o *Options) {
		require.NoError(t, fs.MkdirAll(o.Dir, 0o755))
		syncParents(t, fs, o.Dir)
		o.CatalogFS, o.FlushInterval = fs, time.Minute
		change(o)
	})
	r.each(func(_ int, d *device.Fault) { require.NoError(t, d.Record(testContext(t))) })
	return s, r, func(string) Options {
		after := &rig{}
		clone := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 0, RNG: rand.New(rand.NewPCG(1, 1))})
		r.each(func(_ int, d *device.Fault) {
			after.mems = append(after.mems, d.CrashDevice(d.Events(), nil, device.CrashOptions{}))
			after.faults = append(after.faults, nil)
		})
		o := o
		o.CatalogFS, o.OpenDevice = clone, after.open
		return o
	}
}

// What was accepted and deleted before it was committed does not come back: the delete
// is not answered before that is certain.
func TestDeleteOfAccepted(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, crash := crashRig(t, func(o *Options) { o.CacheBytes = 4 << 20 })
	sc := openSpace(t, s, "n", skep.Durable, 1, true)
	keys := chainKeys(1, 3)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys[:1], 8<<10))
	r.each(func(_ int, d *device.Fault) { d.Hold(device.Write) })
	put := putRequest(sc, &keys[0], 1, keys[1:], 8<<10)
	put.Ack = skep.AckAccepted
	res, err := s.Put(ctx, put)
	require.NoError(t, err)
	requireOutcome(t, skep.Accepted, res)
	requireChain(t, s, sc, keys, 8<<10)
	_, err = s.Delete(brief(t), sc, keys[1:])
	requireKind(t, skep.Deadline, err) // in doubt, and said so
	r.each(func(_ int, d *device.Fault) { d.Release() })
	_, err = s.Delete(ctx, sc, keys[1:])
	require.NoError(t, err)
	require.NoError(t, s.Flush(ctx))
	o := crash("deleted")
	require.NoError(t, s.Close())

	s, err = Open(ctx, o)
	require.NoError(t, err)
	n, reasons := requireRight(t, s, sc, keys, 8<<10)
	require.Equal(t, 1, n, "%v", reasons)
	require.NoError(t, s.Close())
}

// The memory of an accepted block is nobody else's before it was written, also when it is
// deleted meanwhile: a rebuild may find what was written, and its checksums fit.
func TestDeletedWhileItIsWritten(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, _ := openRig(t, func(o *Options) { o.CacheBytes = 4 << 20 })
	sc := openSpace(t, s, "n", skep.Durable, 1, true)
	keys, others := chainKeys(1, 3), chainKeys(2, 60)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys[:1], 8<<10))
	r.each(func(_ int, d *device.Fault) { d.Hold(device.Write) })
	put := putRequest(sc, &keys[0], 1, keys[1:], 8<<10)
	put.Ack = skep.AckAccepted
	res, err := s.Put(ctx, put)
	require.NoError(t, err)
	requireOutcome(t, skep.Accepted, res)
	require.NoError(t, waitHeld(r, 1))
	_, err = s.Delete(brief(t), sc, keys[1:])
	requireKind(t, skep.Deadline, err)
	put = putRequest(sc, nil, 0, others, 8<<10) // takes the memory that is free now
	put.Ack = skep.AckAccepted
	res, err = s.Put(ctx, put)
	require.NoError(t, err)
	requireOutcome(t, skep.Accepted, res)
	r.each(func(_ int, d *device.Fault) { d.Release() })
	require.NoError(t, s.Flush(ctx))
	for _, k := range keys[1:] {
		want, there := content(k, skep.PartKV, 1, 8<<10), false
		for _, m := range r.mems {
			there = there || bytes.Contains(m.Bytes(), want)
		}
		require.True(t, there, "what was put was written")
	}
	require.NoError(t, s.Close())
}

// What cleaning has dropped and the caller was told is gone does not come back when the
// machine crashes before the cleaning is done.
func TestDeleteOfEvicted(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, crash := crashRig(t, func(o *Options) {
		o.SegmentBytes, o.CapacityBytes = 64<<10, 2*(6*64<<10+8<<10)
	})
	durable, cache := openSpace(t, s, "durable", skep.Durable, 1, true), openSpace(t, s, "cache", skep.Cache, 1, false)
	events, err := s.Events(ctx, skep.Cursor{}, false)
	require.NoError(t, err)
	defer events.Close()
	// Each group holds some that must be kept, so that cleaning has to read, and hangs.
	r.each(func(_ int, d *device.Fault) { d.Hold(device.Read) })
	var evicted []skep.Key
	chain := chainKeys(1, 40)
	into := make([]skep.Event, 64)
	for i := 0; len(evicted) == 0; i++ {
		require.Less(t, i, len(chain))
		put := putRequest(durable, nil, 0, chain[i:i+1], 4<<10)
		if i > 0 {
			put.Parent, put.Depth = &chain[i-1], i
		}
		_, err := s.Put(ctx, put)
		require.NoError(t, err)
		putRun(t, s, cache, chainKeys(100+i, 3), 8<<10)
		for {
			n, err := events.Next(brief(t), into)
			if err != nil {
				break
			}
			for _, e := range into[:n] {
				if e.Kind == skep.EventEvicted {
					evicted = append(evicted, e.Key)
				}
			}
		}
	}
	n, err := s.Delete(ctx, cache, evicted)
	require.NoError(t, err)
	require.Zero(t, n)
	o := crash("deleted")
	r.each(func(_ int, d *device.Fault) { d.Release() })
	require.NoError(t, s.Close())

	s, err = Open(ctx, o)
	require.NoError(t, err)
	there, _ := requireRight(t, s, cache, evicted, 8<<10)
	require.Zero(t, there, "what was said to be gone is back")
	require.NoError(t, s.Close())
}

// What was put as Cache survives the end of the process soon after it was acknowledged,
// long before the drives are flushed.
func TestCacheBlocksAreSoonSafeFromTheEndOfTheProcess(t *testing.T) {
	t.Parallel() // it waits
	ctx := testContext(t)
	s, r, crash := crashRig(t, func(o *Options) { o.FlushInterval = 3 * hangs })
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	keys := chainKeys(1, 3)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 8<<10))
	var o Options
	eventually(t, "the rows are synced", func() bool {
		o = crash("killed")
		logs, err := o.CatalogFS.List(filepath.Join(o.Dir, "catalog"))
		require.NoError(t, err)
		for _, name := range logs {
			if strings.HasSuffix(name, ".log") && bytes.Contains(readAll(t, o.CatalogFS, filepath.Join(o.Dir, "catalog", name)), keys[2][:]) {
				return true
			}
		}
		return false
	})
	killed := openKilled(t, s, r, o)
	defer func() { require.NoError(t, killed.Close()) }()
	found, err := killed.Lookup(ctx, &skep.LookupRequest{Scope: sc, Keys: keys})
	require.NoError(t, err)
	require.Equal(t, len(keys), found.Blocks)
}

// What was put as Cache before a Flush survives the end of the process right after it, however long it takes until
// the catalog is synced otherwise: an hour here.
func TestWhatWasFlushedSurvivesTheEndOfTheProcess(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, crash := crashRig(t, func(o *Options) { o.FlushInterval = 100 * time.Hour })
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	keys := chainKeys(1, 3)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys[:2], 8<<10))
	accepted := putRequest(sc, &keys[1], 2, keys[2:], 8<<10)
	accepted.Ack = skep.AckAccepted
	_, err := s.Put(ctx, accepted)
	require.NoError(t, err)
	require.NoError(t, s.Flush(ctx))
	alone := openSpace(t, s, "side rows", skep.Cache, 1, false)
	b := content(keys[0], "a", 1, 9000)
	putOne(t, s, alone, keys[0], b)
	require.NoError(t, s.Flush(ctx))
	require.NoError(t, s.PutSidecar(ctx, alone, keys[0], piecesOf(b, 4000)))
	require.NoError(t, s.Flush(ctx))
	killed := openKilled(t, s, r, crash("killed"))
	requireChain(t, killed, sc, keys, 8<<10)
	kept, err := killed.Sidecar(ctx, alone, keys[0])
	require.NoError(t, err)
	require.Equal(t, piecesOf(b, 4000), kept)
	require.NoError(t, killed.Close())
}

// openKilled opens what is left of a store whose process has ended, with the catalog of o: a drive keeps what it
// completed.
func openKilled(t *testing.T, s *Store, r *rig, o Options) *Store {
	after := &rig{}
	r.each(func(_ int, d *device.Fault) {
		after.mems = append(after.mems, d.CrashDevice(d.Events(), nil, device.CrashOptions{KeepAll: true}))
		after.faults = append(after.faults, nil)
	})
	require.NoError(t, s.Close())
	o.OpenDevice = after.open
	killed, err := Open(testContext(t), o)
	require.NoError(t, err)
	return killed
}

func readAll(t *testing.T, fs vfs.FS, name string) []byte {
	f, err := fs.Open(name)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	b, err := io.ReadAll(f)
	require.NoError(t, err)
	return b
}

// BlockBytes is the payload of what is stored, after everything that takes blocks away: also
// a purge, of which the index and the groups are told later.
func TestBlockBytesFollowsWhatIsStored(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	o := small(tempRoot(t, "store"))
	o.CacheBytes = -1
	s, err := Open(ctx, o)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	stored := func() int64 {
		st, err := s.Stats(ctx)
		require.NoError(t, err)
		return st.BlockBytes
	}
	kept, purged := openSpace(t, s, "kept", skep.Durable, 1, true), openSpace(t, s, "purged", skep.Cache, 1, true)
	keys := chainKeys(1, 8)
	for _, sc := range []skep.Scope{kept, purged, {Namespace: kept.Namespace, Salt: "salt"}} {
		requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 3000))
	}
	require.EqualValues(t, 3*8*3000, stored())
	require.NoError(t, s.Purge(ctx, skep.Purge{Namespace: purged.Namespace}))
	require.EqualValues(t, 2*8*3000, stored())
	s.naming.Sweep() // what the index is told of it changes nothing
	require.EqualValues(t, 2*8*3000, stored())
	requireOutcome(t, skep.Committed, putRun(t, s, purged, keys[:2], 3000))
	n, err := s.Delete(ctx, kept, keys[5:])
	require.NoError(t, err)
	require.Equal(t, 3, n)
	require.EqualValues(t, (5+8+2)*3000, stored())

	require.NoError(t, s.Close())
	s, err = Open(ctx, o)
	require.NoError(t, err)
	require.EqualValues(t, (5+8+2)*3000, stored())
}

// A block that replaces one which was only accepted is not told as committed while the row of that one may come yet:
// a crash would bring it back.
func TestReplacedWhileItIsWritten(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, _ := openRig(t, func(o *Options) {
		unjudged(o)
		o.CacheBytes, o.OpTimeout = 4<<20, hangs
	})
	defer func() { require.NoError(t, s.Close()) }()
	n, err := s.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: halfShape, Class: skep.Durable, Copies: 1, Chained: true})
	require.NoError(t, err)
	sc := skep.Scope{Namespace: n.ID}
	keys := chainKeys(1, 3)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys[:1], 8<<10))
	r.each(func(_ int, d *device.Fault) { d.MustInject(holdWritesOf(keys[1])) }) // and not those of a spare group's headers
	tail := putRequest(sc, &keys[0], 1, keys[1:2], 8<<10)
	tail.Blocks[0].ValidTokens = 1
	tail.Ack = skep.AckAccepted
	res, err := s.Put(ctx, tail)
	require.NoError(t, err)
	requireOutcome(t, skep.Accepted, res)
	require.NoError(t, waitHeld(r, 1))
	whole := putRequest(sc, &keys[0], 1, keys[2:], 8<<10)
	whole.Blocks[0].Replaces = &keys[1]
	until, giveUp := context.WithCancel(ctx)
	put := make(chan error, 1)
	go func() {
		_, err := s.Put(until, whole)
		put <- err
	}()
	eventually(t, "the tail is gone", func() bool { return prefix(t, s, sc, keys[:2]) == 1 })
	require.Empty(t, put, "and the caller was not told so yet")
	giveUp()
	requireKind(t, skep.Deadline, <-put)
	r.each(func(_ int, d *device.Fault) { d.Release() })
	require.NoError(t, s.Flush(ctx))
	require.Equal(t, 2, prefix(t, s, sc, []skep.Key{keys[0], keys[2]}))
	require.Equal(t, 1, prefix(t, s, sc, keys[:2]))
}

// holdWritesOf holds the writes of what putRequest and putRun put under keys, and no others.
func holdWritesOf(keys ...skep.Key) device.Rule {
	var starts [][]byte
	for _, k := range keys {
		starts = append(starts, content(k, skep.PartKV, 1, 64))
	}
	return device.Rule{Action: device.Hold, Kinds: device.Writes, Match: func(op *device.Op) bool {
		return slices.ContainsFunc(op.Bufs, func(b []byte) bool {
			return slices.ContainsFunc(starts, func(start []byte) bool { return bytes.Contains(b, start) })
		})
	}}
}
