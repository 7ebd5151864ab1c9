package store

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/restore"
)

// noise is what a store may read of its devices for itself meanwhile, in bytes.
const noise = 256 << 10

// sharing is a request of two prompts of n blocks that have all but their last four in common, and
// the keys of both.
func sharing(t *testing.T, s *Store, sc skep.Scope, n int, lent bool) (*skep.RestoreRequest, [2][]skep.Key) {
	t.Helper()
	a, b := chainKeys(1, n), append(chainKeys(1, n-4), chainKeys(2, 4)...)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, a, modelBlock))
	p := &skep.PutRequest{Scope: sc, Parent: &b[n-5], Depth: n - 4}
	for _, k := range b[n-4:] {
		p.Blocks = append(p.Blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: content(k, skep.PartKV, 1, modelBlock)}}})
	}
	res, err := s.Put(testContext(t), p)
	require.NoError(t, err)
	requireOutcome(t, skep.Committed, res)
	r := &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: a}, {Scope: sc, Keys: b}}}
	if !lent {
		for i := range r.Chains {
			r.Chains[i].Dest = skep.Destination{Memory: device.AlignedBuffer(n * modelBlock), Stride: modelBlock}
		}
	}
	return r, [2][]skep.Key{a, b}
}

// Prompts of a batch that share a prefix read it once, whether their bytes are lent or go to memory
// of their own: who comes second waits for the first one's read.
func TestSharedPrefixIsReadOnce(t *testing.T) {
	t.Parallel()
	const n = 64
	for name, lent := range map[string]bool{"to memory of their own": false, "lent": true} {
		t.Run(name, func(t *testing.T) {
			s := openSlow(t, 8<<20, nil)
			sc := openModel(t, s)
			r, keys := sharing(t, s, sc, n, lent)
			before, err := s.Stats(testContext(t))
			require.NoError(t, err)
			list, err := fetchAll(testContext(t), s, r.Chains)
			require.NoError(t, err)
			for i := range list {
				for b, g := range list[i] {
					require.NoError(t, g.err)
					require.True(t, bytes.Equal(content(keys[i][b], skep.PartKV, 1, modelBlock), g.data), "block %d of chain %d", b, i)
				}
			}
			after, err := s.Stats(testContext(t))
			require.NoError(t, err)
			read := after.Devices[0].BytesRead - before.Devices[0].BytesRead
			t.Logf("%d blocks of %d joined others' reads", after.JoinedBytes/modelBlock, n-4)
			require.Positive(t, after.JoinedBytes)
			require.LessOrEqual(t, after.JoinedBytes, int64(n-4)*modelBlock)
			require.LessOrEqual(t, read, 2*n*modelBlock-after.JoinedBytes+noise, "what was joined was not read")
		})
	}
}

// When the chain whose reads others wait for is stopped, they are read for those; when one
// that waits is stopped, its memory is its caller's at once.
func TestSharedPrefixWhenOneStops(t *testing.T) {
	t.Parallel()
	const n = 64
	for stopped := range 2 {
		for _, lent := range []bool{false, true} {
			s := openSlow(t, 16<<20, nil)
			sc := openModel(t, s)
			r, keys := sharing(t, s, sc, n, lent)
			ctx := testContext(t)
			ses, err := s.Restore(ctx, r)
			require.NoError(t, err)
			var into [1]skep.Chunk
			_, err = ses.Next(ctx, into[:]) // some are on their way
			require.NoError(t, err)
			into[0].Release()
			first := into[0]
			require.NoError(t, ses.Stop(ctx, stopped))
			dest := r.Chains[stopped].Dest.Memory
			for i := range dest {
				dest[i] = 0xA5
			}
			got := 0
			if first.Chain == 1-stopped {
				got++
			}
			for {
				if _, err = ses.Next(ctx, into[:]); err != nil {
					break
				}
				if ch := &into[0]; ch.Chain != stopped {
					require.NoError(t, ch.Err, "block %d", ch.Block)
					data := bytes.Join(ch.Data, nil)
					if !lent {
						data = r.Chains[ch.Chain].Dest.Memory[ch.Block*modelBlock:][:modelBlock]
					}
					require.True(t, bytes.Equal(content(keys[ch.Chain][ch.Block], skep.PartKV, 1, modelBlock), data), "block %d", ch.Block)
					got++
				}
				into[0].Release()
			}
			require.Equal(t, n, got)
			require.NoError(t, ses.Close(ctx))
			require.Equal(t, len(dest), bytes.Count(dest, []byte{0xA5}), "nothing was written after the stop")
			require.Zero(t, s.restores.State().Joinable)
		}
	}
}

// Who joins a read that waits at its drive gives it its priority.
func TestJoinedReadsAreRaised(t *testing.T) {
	t.Parallel()                 // it waits
	s := openSlow(t, 2<<20, nil) // 6 s in all, 2 of them for what the drive has
	sc := openModel(t, s)
	keys := chainKeys(1, 3*restore.DriveReads)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, modelBlock))
	ctx := testContext(t)
	low, err := s.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys, Direction: skep.HeadFirst, Priority: -1}}})
	require.NoError(t, err)
	d := s.members.Opened[0]
	eventually(t, "reads wait at the drive", func() bool { return d.Reads.Waiting() >= restore.DriveReads })
	block := 2*restore.DriveReads - 1 // it waits, behind others: they are issued in order, and the drive has DriveReads at most
	got, err := fetch(ctx, s, skep.Chain{Scope: sc, Keys: keys, Blocks: skep.Only(block, block+1), Priority: 5})
	require.NoError(t, err)
	require.NoError(t, got[block].err)
	into := make([]skep.Chunk, len(keys))
	n, err := low.Next(ctx, into)
	require.NoError(t, err)
	for i := range into[:n] {
		into[i].Release()
	}
	require.Less(t, n, len(keys), "it came before others that waited longer")
	require.LessOrEqual(t, s.count.Joined.Load(), int64(modelBlock))
	require.NoError(t, low.Close(ctx))
}

// A chunk that waits for another's read is back as soon as it is answered, whatever ends it: the drive that holds the
// read never had its memory.
func TestWhoJoinedAHeldReadIsNotHeld(t *testing.T) {
	t.Parallel() // it waits
	const size = 8 << 10
	for _, ends := range []string{"a deadline", "a deadline that was moved", "the store's own limit"} {
		t.Run(ends, func(t *testing.T) {
			ctx := testContext(t)
			s, r, _ := openRig(t, func(o *Options) {
				unjudged(o)
				if ends == "the store's own limit" {
					o.OpTimeout = 3 * time.Second // what is not held must never take as long
				}
			})
			sc := openSpace(t, s, "n", skep.Cache, 1, true)
			keys := chainKeys(1, 1)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, size))
			r.each(func(_ int, d *device.Fault) { d.Hold(device.Read) })
			begin := func(end time.Time) skep.Session {
				c := skep.Chain{Scope: sc, Keys: keys, Deadline: end}
				c.Dest = skep.Destination{Memory: device.AlignedBuffer(size), Stride: size}
				ses, err := s.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{c}})
				require.NoError(t, err)
				return ses
			}
			first := begin(time.Time{})
			require.NoError(t, waitHeld(r, 1))
			into := make([]skep.Chunk, 1)
			var end time.Time
			if ends == "a deadline" {
				end = time.Now().Add(200 * time.Millisecond)
			}
			second := begin(end)
			if ends == "a deadline that was moved" {
				_, err := second.Next(brief(t), into) // it joins meanwhile
				requireKind(t, skep.Deadline, err)
				require.NoError(t, second.Reprioritise(ctx, 0, 0, time.Now().Add(-time.Second)))
			}
			_, err := second.Next(ctx, into)
			require.NoError(t, err)
			require.Error(t, into[0].Err)
			_, err = second.Next(ctx, into)
			require.ErrorIs(t, err, io.EOF)
			held := 0
			r.each(func(_ int, d *device.Fault) { held += d.Held() })
			require.Equal(t, 1, held, "one read, which the drive still has")
			require.NoError(t, second.Close(ctx))
			r.each(func(_ int, d *device.Fault) { d.Release() })
			require.NoError(t, first.Close(ctx))
			require.NoError(t, s.Close())
		})
	}
}

// When a drive is dead that holds a read, who joined it does not wait for what was answered as a miss: it reads on its
// own.
func TestWhoJoinedAReadOfADeadDriveReadsOnItsOwn(t *testing.T) {
	t.Parallel() // it waits
	const size = 8 << 10
	ctx := testContext(t)
	s, r, _ := openRig(t, unjudged)
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	keys := chainKeys(1, 1)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, size))
	r.each(func(_ int, d *device.Fault) { d.Hold(device.Read) })
	begin := func() skep.Session {
		c := skep.Chain{Scope: sc, Keys: keys, Dest: skep.Destination{Memory: device.AlignedBuffer(size), Stride: size}}
		ses, err := s.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{c}})
		require.NoError(t, err)
		return ses
	}
	first := begin()
	require.NoError(t, waitHeld(r, 1))
	second := begin()
	into := make([]skep.Chunk, 1)
	_, err := second.Next(brief(t), into) // it joins meanwhile
	requireKind(t, skep.Deadline, err)
	for _, d := range s.members.Opened {
		restore.Hedge(d, 0, health.Dead)
	}
	_, err = first.Next(ctx, into)
	require.NoError(t, err)
	require.Error(t, into[0].Err)
	require.NoError(t, waitHeld(r, 2), "a read of its own")
	r.each(func(_ int, d *device.Fault) { d.Release() })
	_, err = second.Next(ctx, into)
	require.NoError(t, err)
	require.NoError(t, into[0].Err)
	require.NoError(t, second.Close(ctx))
	require.NoError(t, first.Close(ctx))
	require.NoError(t, s.Close())
}
