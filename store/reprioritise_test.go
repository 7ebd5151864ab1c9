package store

import (
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
)

// What a chain has not on its way yet goes to the drives at the priority it was given last: before the reads of
// other sessions that wait there.
func TestReprioritiseOvertakesOtherSessions(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, drive := openFaulty(t, 1<<30, func(*Options) {})
	sc := openModel(t, s)
	first, others := chainKeys(1, 2), chainKeys(2, 300)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, first, modelBlock))
	requireOutcome(t, skep.Committed, putRun(t, s, sc, others, modelBlock))
	next := func(ses skep.Session) skep.Chunk {
		into := make([]skep.Chunk, 1)
		_, err := ses.Next(ctx, into)
		require.NoError(t, err)
		require.NoError(t, into[0].Err)
		return into[0]
	}
	one, err := s.Restore(ctx, &skep.RestoreRequest{Window: 1, Chains: []skep.Chain{{Scope: sc, Keys: first}}})
	require.NoError(t, err)
	held := next(one) // its second block is read once this one is given back
	dest := device.AlignedBuffer(len(others) * modelBlock)
	var mu sync.Mutex
	var ofOne []bool // by read the drive is given
	drive.MustInject(device.Rule{Action: device.Fail, Kinds: device.Reads, Match: func(o *device.Op) bool {
		mu.Lock()
		defer mu.Unlock()
		if o.Len() >= modelBlock {
			at := uintptr(unsafe.Pointer(&o.Bufs[0][0]))
			from := uintptr(unsafe.Pointer(&dest[0]))
			ofOne = append(ofOne, at < from || at >= from+uintptr(len(dest)))
		}
		return false // it only looks
	}})
	large := func(o *device.Op) bool { return o.Len() >= modelBlock }
	drive.MustInject(device.Rule{Action: device.Hold, Kinds: device.Reads, Match: large})
	many, err := s.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: others, Priority: 1,
		Dest: skep.Destination{Memory: dest, Stride: modelBlock}}}})
	require.NoError(t, err)
	waiting := s.members.Opened[0].Queue().Waiting
	eventually(t, "reads wait for the drive", func() bool { return drive.Held()+waiting() == len(others) })
	given := drive.Held()
	require.Less(t, given, len(others))
	require.NoError(t, one.Reprioritise(ctx, 0, 2, time.Time{}))
	held.Release()
	eventually(t, "the second block's read waits too", func() bool { return drive.Held()+waiting() > len(others) })
	drive.Release()
	last := next(one)
	last.Release()
	require.NoError(t, skep.Drain(ctx, many, nil))
	mu.Lock()
	order := slices.Clone(ofOne)
	mu.Unlock()
	// Held reads were given before; it is the next one.
	require.Equal(t, given, slices.Index(order, true), "of %d reads", len(order))
	require.NoError(t, one.Close(ctx))
	require.NoError(t, many.Close(ctx))
}
