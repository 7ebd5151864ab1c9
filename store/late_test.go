package store

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/space"
)

// brief is a context for waits that are expected to fail.
func brief(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

const canary = 0xa5

// unjudged has no drive be found slow or dead, however long the test holds its operations
// and however slow the machine is.
func unjudged(o *Options) {
	o.rules = health.DefaultRules
	o.rules.Hung, o.rules.HungWrites, o.rules.Floor, o.rules.Tolerate = hangs, hangs, hangs, hangs
}

// A drive that does not answer: the deadline answers for it, memory comes back when the
// drive has let go of it and not before, and after that no byte of it ever changes.
func TestLateReads(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		action  device.Action
		aligned bool // read straight into the destination, or copied there
	}{
		{"held before the transfer, in place", device.Hold, true},
		{"held before the transfer, copied", device.Hold, false},
		{"completion withheld, in place", device.Withhold, true},
		{"completion withheld, copied", device.Withhold, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx := testContext(t)
			s, r, _ := openRig(t, unjudged)
			sc := openSpace(t, s, "n", skep.Cache, 1, true)
			keys := chainKeys(1, 12)
			const size = 8 << 10
			requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, size))

			r.each(func(_ int, d *device.Fault) { d.MustInject(device.Rule{Action: tt.action, Kinds: device.Reads}) })
			mem := device.AlignedBuffer((len(keys) + 1) * size)
			dest := mem[:len(keys)*size]
			if !tt.aligned {
				dest = mem[100 : 100+len(keys)*size]
			}
			ses, err := s.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys, Deadline: time.Now().Add(30 * time.Millisecond),
				Dest: skep.Destination{Memory: dest, Stride: size}}}})
			require.NoError(t, err)
			into := make([]skep.Chunk, 1)
			for range keys {
				n, err := ses.Next(ctx, into)
				require.NoError(t, err)
				require.Equal(t, 1, n)
				requireKind(t, skep.Deadline, into[0].Err)
			}
			fill := func() {
				for i := range mem {
					mem[i] = canary
				}
			}
			release := func() { r.each(func(_ int, d *device.Fault) { d.Release() }) }
			if tt.aligned {
				// Everything is answered, and yet it is not the end: the memory is not ours.
				_, err = ses.Next(brief(t), into)
				requireKind(t, skep.Deadline, err)
				requireKind(t, skep.NotReleased, ses.Stop(brief(t), 0))
				requireKind(t, skep.NotReleased, ses.Stop(brief(t), -1))
				requireKind(t, skep.NotReleased, ses.Close(brief(t)))
				release()
				require.NoError(t, ses.Stop(ctx, 0))
				fill()
			} else {
				// The drive has memory of the store's, which is left to it: ours comes back.
				require.NoError(t, ses.Stop(ctx, 0))
				_, err = ses.Next(ctx, into)
				require.ErrorIs(t, err, io.EOF)
				fill()
				release()
			}
			require.NoError(t, ses.Close(ctx))
			requireChain(t, s, sc, keys, size) // the store goes on
			require.Equal(t, len(mem), bytes.Count(mem, []byte{canary}), "memory changed after it was released")
			require.NoError(t, s.Close())
			require.Equal(t, len(mem), bytes.Count(mem, []byte{canary}), "memory changed after it was released")
		})
	}
}

// Without a deadline the store's own limit on an operation answers.
func TestOpTimeout(t *testing.T) {
	t.Parallel() // it waits
	ctx := testContext(t)
	s, r, _ := openRig(t, func(o *Options) {
		unjudged(o)
		o.OpTimeout = 3 * time.Second // puts and reads that are not held must never take as long
	})
	defer func() { require.NoError(t, s.Close()) }()
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	keys := chainKeys(1, 6)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 8<<10))
	r.each(func(_ int, d *device.Fault) { d.Hold(device.Read) })
	dest := device.AlignedBuffer(len(keys) * 8 << 10)
	ses, err := s.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys, Dest: skep.Destination{Memory: dest, Stride: 8 << 10}}}})
	require.NoError(t, err)
	into := make([]skep.Chunk, 1)
	for range keys {
		n, err := ses.Next(ctx, into)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		requireKind(t, skep.DeviceFailed, into[0].Err)
	}
	_, err = ses.Next(brief(t), into)
	requireKind(t, skep.Deadline, err)
	r.each(func(_ int, d *device.Fault) { d.Release() })
	_, err = ses.Next(ctx, into)
	require.ErrorIs(t, err, io.EOF)
	clear(dest)
	require.NoError(t, ses.Close(ctx))
	requireChain(t, s, sc, keys, 8<<10)
	require.Equal(t, len(dest), bytes.Count(dest, []byte{0}))
}

// A store that is closed while a drive holds a read says so, and leaves the memory alone
// that the drive may still write to: the destination, and its own.
func TestCloseWhileReadsAreHeld(t *testing.T) {
	t.Parallel() // it waits
	for _, lent := range []bool{false, true} {
		t.Run(map[bool]string{false: "into the caller's memory", true: "into the store's"}[lent], func(t *testing.T) {
			ctx := testContext(t)
			s, r, o := openRig(t, func(o *Options) {
				unjudged(o)
				o.closeTimeout = 100 * time.Millisecond
			})
			sc := openSpace(t, s, "n", skep.Durable, 1, true)
			keys := chainKeys(1, 8)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 8<<10))
			r.each(func(_ int, d *device.Fault) { d.Hold(device.Read) })
			c := skep.Chain{Scope: sc, Keys: keys}
			dest := device.AlignedBuffer(len(keys) * 8 << 10)
			if !lent {
				c.Dest = skep.Destination{Memory: dest, Stride: 8 << 10}
			}
			_, err := s.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{c}})
			require.NoError(t, err)
			require.NoError(t, r.faults[0].WaitHeld(ctx, 1))
			require.NoError(t, r.faults[1].WaitHeld(ctx, 1))
			err = s.Close()
			require.ErrorIs(t, err, skep.NotReleased)
			held := append([]*device.Fault{}, r.faults...)

			// The same directory can be opened meanwhile: what was stored is there.
			o.closeTimeout = hangs
			s2, err := Open(ctx, o)
			require.NoError(t, err)
			requireChain(t, s2, sc, keys, 8<<10)
			require.NoError(t, s2.Close())
			for _, f := range held {
				f.Release() // writes into memory that must still be there
			}
			for _, f := range held {
				eventually(t, "the drive lets go", func() bool { return f.Stats().InFlight == 0 })
			}
		})
	}
}

// Writes that hang: the put is declined, the cells are not used again while the drive may
// still write to them, and what is written late destroys nothing.
func TestLateWrites(t *testing.T) {
	t.Parallel() // it waits
	for _, tt := range []struct {
		name string
		rule device.Rule
	}{
		{"payload and logs", device.Rule{Action: device.Hold, Kinds: device.Writes, Nth: 1}},
		{"some of them", device.Rule{Action: device.Hold, Kinds: device.Writes, Probability: 0.3}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx := testContext(t)
			s, r, o := openRig(t, func(o *Options) {
				unjudged(o)
				// What hangs costs an OpTimeout; what does not must never take as long.
				o.OpTimeout, o.SegmentBytes, o.CapacityBytes = 2*time.Second, 64<<10, 2*(14*64<<10+8<<10)
			})
			sc := openSpace(t, s, "n", skep.Cache, 1, false)
			keep := openSpace(t, s, "keep", skep.Durable, 1, true)
			kept := chainKeys(7, 10)
			requireOutcome(t, skep.Committed, putRun(t, s, keep, kept, 8<<10))

			rules := []*device.Injected{}
			r.each(func(_ int, d *device.Fault) { rules = append(rules, d.MustInject(tt.rule)) })
			var declined atomic.Int64
			for round := range 2 { // three at a time, so that it does not take so long
				var wg sync.WaitGroup
				for i := range 3 {
					wg.Go(func() {
						res, err := heapPut(ctx, s, putRequest(sc, nil, 0, chainKeys(100+3*round+i, 4), 8<<10))
						if err != nil {
							t.Error(err)
						}
						for _, x := range res {
							if x.Outcome == skep.Declined {
								declined.Add(1)
								if x.Reason != skep.DeviceFailed && x.Reason != skep.Full {
									t.Errorf("declined: %v", x.Reason)
								}
							}
						}
					})
				}
				wg.Wait()
			}
			require.False(t, t.Failed())
			require.Positive(t, declined.Load())
			for _, rule := range rules {
				rule.Remove() // new writes pass; what is held stays held
			}
			held := r.faults[0].Held() + r.faults[1].Held()
			require.Positive(t, held)

			// The store is filled several times over while the writes hang.
			eventually(t, "drives that were fenced are let back in", func() bool {
				return putRun(t, s, sc, chainKeys(int(time.Now().UnixNano()), 1), 8<<10)[0].Outcome == skep.Committed
			})
			var last []skep.Key
			committed := 0
			for i := range 60 {
				keys := chainKeys(1000+i, 4)
				res, err := s.Put(ctx, putRequest(sc, nil, 0, keys, 8<<10))
				require.NoError(t, err)
				for j, x := range res {
					if x.Outcome == skep.Committed {
						committed++
						last = append(last, keys[j])
					}
				}
			}
			require.Positive(t, committed)
			r.each(func(_ int, d *device.Fault) { d.Release() })
			r.each(func(_ int, d *device.Fault) {
				eventually(t, "writes end", func() bool { return d.Stats().InFlight == 0 })
			})
			requireChain(t, s, keep, kept, 8<<10)
			n, reasons := requireRight(t, s, sc, last, 8<<10) // the others were evicted
			require.Positive(t, n, "%v", reasons)
			require.Zero(t, reasons[skep.Damaged], "a late write landed in somebody else's cells: %v", reasons)
			// And the space comes back.
			eventually(t, "groups are reused", func() bool {
				res := putRun(t, s, sc, chainKeys(int(time.Now().UnixNano()), 4), 8<<10)
				return res[0].Outcome == skep.Committed
			})
			st, err := s.Stats(ctx)
			require.NoError(t, err)
			require.Zero(t, st.Damaged)
			require.NoError(t, s.Close())
			s, err = Open(ctx, o)
			require.NoError(t, err)
			requireChain(t, s, keep, kept, 8<<10)
			_, reasons = requireRight(t, s, sc, last, 8<<10)
			require.Zero(t, reasons[skep.Damaged])
			require.NoError(t, s.Close())
		})
	}
}

// A hung drive does not keep others waiting.
func TestOneHungDrive(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, _ := openRig(t, func(o *Options) { unjudged(o); o.DeviceCount = 3 })
	defer func() { require.NoError(t, s.Close()) }()
	sc := openSpace(t, s, "n", skep.Cache, 1, false)
	keys := chainKeys(1, 30)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 4<<10))
	r.faults[1].Hold(device.Read)
	ses, err := s.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys}}})
	require.NoError(t, err)
	require.NoError(t, r.faults[1].WaitHeld(ctx, 1))
	landed := 0
	into := make([]skep.Chunk, 4)
	for landed < len(keys)/2 {
		n, err := ses.Next(ctx, into)
		require.NoError(t, err)
		for i := range into[:n] {
			require.NoError(t, into[i].Err)
			into[i].Release()
		}
		landed += n
	}
	r.faults[1].Release()
	for !errors.Is(err, io.EOF) {
		var n int
		if n, err = ses.Next(ctx, into); err != nil && !errors.Is(err, io.EOF) {
			require.NoError(t, err)
		}
		for i := range into[:n] {
			require.NoError(t, into[i].Err)
			into[i].Release()
		}
	}
	require.NoError(t, ses.Close(ctx))
}

// Drives that hang while a group is being opened hold up every put that needs one: those are
// declined, as the put is that opens it. Answered with an error, they would look like a store
// that is broken.
func TestAPutIsDeclinedWhileAGroupIsBeingOpened(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, _, _ := openRig(t, func(o *Options) {
		unjudged(o)
		o.OpTimeout = 3 * time.Second // what is not held must never take as long
	})
	sc := openSpace(t, s, "n", skep.Cache, 1, false)
	require.NoError(t, s.space.TakeOpening(ctx, "put"))
	s.space.SealOpen(space.User)
	res := putRun(t, s, sc, chainKeys(1, 2), 8<<10)
	s.space.Opening.Give()
	for _, r := range res {
		require.Equal(t, skep.PutResult{Outcome: skep.Declined, Reason: skep.DeviceFailed}, r)
	}
	require.NoError(t, s.Close())
}
