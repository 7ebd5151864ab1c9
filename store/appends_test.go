package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/storetest"
)

// A block of more bytes than there are I/O buffers, in memory that no drive writes from, does not wait for the buffers
// that it holds itself.
func TestALargeBlockInUnalignedMemory(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, _, _ := openRig(t, func(o *Options) {
		o.SegmentBytes, o.CapacityBytes, o.IOBytes = 16<<20, 2*(5*16<<20+8<<10), leastIOBytes
	})
	defer func() { require.NoError(t, s.Close()) }()
	sc := openSpace(t, s, "n", skep.Cache, 1, false)
	size := int(s.options.IOBytes) + 4<<20
	bytes := device.AlignedBuffer(size + device.Align)[1:][:size]
	copy(bytes[size-8:], "the end.")
	res, err := s.Put(ctx, &skep.PutRequest{Scope: sc, Blocks: []skep.Block{{Key: keyOf(1),
		Parts: []skep.Part{{Bytes: bytes}}}}})
	require.NoError(t, err)
	requireOutcome(t, skep.Committed, res)
	require.Zero(t, s.arena.Stats().IOUsed, "all of them are back")
}

// A block that no group can hold is declined, and the group that is being filled stays open for what is smaller.
func TestABlockLargerThanAGroupSealsNone(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, _, o := openRig(t, nil)
	defer func() { require.NoError(t, s.Close()) }()
	sc := openSpace(t, s, "n", skep.Cache, 1, false)
	put := func(n uint32, size int) []skep.PutResult {
		res, err := s.Put(ctx, putRequest(sc, nil, 0, []skep.Key{keyOf(n)}, size))
		require.NoError(t, err)
		return res
	}
	requireOutcome(t, skep.Committed, put(1, 8<<10))
	g := openedBy(s, space.User)
	require.NotNil(t, g)
	for n := range uint32(3) {
		res := put(10+n, 3*int(o.SegmentBytes))
		requireOutcome(t, skep.Declined, res)
		require.Equal(t, skep.Full, res[0].Reason)
	}
	require.Same(t, g, openedBy(s, space.User))
	requireOutcome(t, skep.Committed, put(2, 8<<10))
	require.Same(t, g, openedBy(s, space.User))
}

// What others see of an accepted block is not changed when it is written.
func TestAnAcceptedRecordStaysAsItIs(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, _ := openRig(t, func(o *Options) {
		unjudged(o)
		o.CacheBytes, o.OpTimeout = 4<<20, hangs
	})
	defer func() { require.NoError(t, s.Close()) }()
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	r.each(func(_ int, d *device.Fault) { d.Hold(device.Write) })
	put := putRequest(sc, nil, 0, []skep.Key{keyOf(1)}, 100)
	put.Ack = skep.AckAccepted
	res, err := s.Put(ctx, put)
	require.NoError(t, err)
	requireOutcome(t, skep.Accepted, res)
	seen := s.puts.Records.Get(s.names.Fingerprint(s.names.Get(sc.Namespace).Instance, namespaces.Tag{}, keyOf(1)))
	require.NotNil(t, seen)
	r.each(func(_ int, d *device.Fault) { d.Release() })
	require.NoError(t, s.Flush(ctx))
	require.Len(t, recordsOf(t, s), 1)
	require.Nil(t, seen.Parts[0].Inline)
}

// Nobody waits for log entries that a dead drive has: they go to other drives.
func TestLogEntriesDoNotWaitForADeadDrive(t *testing.T) {
	t.Parallel()
	s, r, _ := openRig(t, func(o *Options) {
		unjudged(o)
		o.DeviceCount, o.CapacityBytes, o.OpTimeout = 4, 8<<20, 2*hangs
	})
	putRun(t, s, openSpace(t, s, "first", skep.Durable, 1, true), chainKeys(1, 1), 8<<10) // a group is open
	r.each(func(_ int, d *device.Fault) { d.Hold(device.Write) })
	crew := storetest.NewCrew(t)
	crew.Go(func(t testing.TB) { openSpace(t, s, "second", skep.Durable, 1, true) })
	require.NoError(t, waitHeld(r, 2))
	var dead *device.Fault
	r.each(func(i int, d *device.Fault) {
		if dead == nil && d.Held() > 0 {
			dead = d
			s.space.Exclude(s.members.All()[i], health.Dead, segio.ErrNoDrive)
			return
		}
		d.Release()
	})
	crew.Wait()
	dead.Release()
	require.NoError(t, s.Close())
}
