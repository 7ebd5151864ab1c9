package store

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/health"
)

// holding has every device keep writes from the drive, and knows them.
type holding struct {
	mu  sync.Mutex
	ops []*device.Op
}

func (h *holding) start(r *rig) {
	r.each(func(_ int, d *device.Fault) {
		d.MustInject(device.Rule{Action: device.Hold, Kinds: device.Writes, Match: func(o *device.Op) bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.ops = append(h.ops, o)
			return true
		}})
	})
}

// of are those that write from mem.
func (h *holding) of(mem []byte) (out [][]byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, o := range h.ops {
		for _, b := range o.Bufs {
			if liesIn(b, mem) {
				out = append(out, b)
			}
		}
	}
	return out
}

func liesIn(b, mem []byte) bool {
	for i := 0; i+len(b) <= len(mem); i += device.Align {
		if &mem[i] == &b[0] {
			return true
		}
	}
	return false
}

func letGo(t *testing.T, r *rig) {
	r.each(func(_ int, d *device.Fault) { d.Release() })
	r.each(func(_ int, d *device.Fault) {
		eventually(t, "the drive lets go", func() bool { return d.Stats().InFlight == 0 })
	})
}

// alignedPut is a put of successive blocks out of one piece of aligned memory.
func alignedPut(sc skep.Scope, keys []skep.Key, size int) (*skep.PutRequest, []byte) {
	mem := device.AlignedBuffer(len(keys) * size)
	r := &skep.PutRequest{Scope: sc}
	for i, k := range keys {
		part := mem[i*size : (i+1)*size : (i+1)*size]
		copy(part, content(k, skep.PartKV, 1, size))
		r.Blocks = append(r.Blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: part}}})
	}
	return r, mem
}

// A put whose caller goes, or whose writes take longer than any may, while drives have writes from
// its memory says that they have. When the last has let go, and not before, whoever lent it is told.
func TestAPutGivesItsMemoryBackWhenTheDrivesDo(t *testing.T) {
	t.Parallel()
	for name, gone := range map[string]bool{"the caller goes": true, "the drives hang": false} {
		t.Run(name, func(t *testing.T) {
			s, r, _ := openRig(t, func(o *Options) {
				unjudged(o)
				if !gone {
					o.OpTimeout = 3 * time.Second // what is not held must never take as long
				}
			})
			defer func() { require.NoError(t, s.Close()) }()
			sc := openSpace(t, s, "n", skep.Cache, 1, true)
			keys := chainKeys(1, 4)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(2, 1), 8<<10)) // the group is open
			var h holding
			h.start(r)
			req, mem := alignedPut(sc, keys, 8<<10)
			told := make(chan struct{})
			req.Released = func() { close(told) }
			ctx, cancel := context.WithCancel(testContext(t))
			defer cancel()
			if gone {
				go func() {
					for _, f := range r.faults {
						_ = f.WaitHeld(ctx, 1)
					}
					cancel()
				}()
			}
			res, err := s.Put(ctx, req)
			requireKind(t, skep.NotReleased, err)
			rest, held := skep.Held(err)
			require.True(t, held)
			if gone {
				requireKind(t, skep.Deadline, rest)
			} else {
				require.NoError(t, rest)
				requireOutcome(t, skep.Declined, res)
			}
			require.NotEmpty(t, h.of(mem), "the drives write from there")
			select {
			case <-told:
				t.Fatal("told while drives have the memory")
			default:
			}
			letGo(t, r)
			<-told
			clear(mem) // it is ours
			list, err := fetch(testContext(t), s, skep.Chain{Scope: sc, Keys: keys})
			require.NoError(t, err)
			for i, g := range list {
				require.Error(t, g.err, "block %d was not acknowledged", i)
				require.NotEqual(t, skep.Damaged, skep.KindOf(g.err))
			}
			requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 8<<10)) // and again
			requireChain(t, s, sc, keys, 8<<10)
		})
	}
}

// A put that ends with nothing at the drives never says so, and tells nobody.
func TestAPutThatEndsTellsNobody(t *testing.T) {
	t.Parallel()
	s, _, _ := openRig(t, nil)
	defer func() { require.NoError(t, s.Close()) }()
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	req, _ := alignedPut(sc, chainKeys(1, 4), 8<<10)
	req.Released = func() { t.Error("told") }
	for range 2 {
		_, err := s.Put(testContext(t), req)
		require.NoError(t, err)
	}
}

// Accepted blocks are written out of the DRAM tier: while a drive has such a write, the memory is
// nobody else's, though the blocks were given up long ago.
func TestAcceptedMemoryIsNotUsedWhileItIsWritten(t *testing.T) {
	t.Parallel()
	const size = 64 << 10
	s, r, _ := openRig(t, func(o *Options) {
		unjudged(o)
		o.CacheBytes, o.OpTimeout, o.BlockBytes = 2<<20, 3*time.Second, size
	})
	defer func() { require.NoError(t, s.Close()) }()
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(2, 1), 8<<10))
	var h holding
	h.start(r)
	keys := chainKeys(1, 4)
	req, _ := alignedPut(sc, keys, size)
	req.Ack = skep.AckAccepted
	res, err := s.Put(testContext(t), req)
	require.NoError(t, err)
	requireOutcome(t, skep.Accepted, res)
	require.NoError(t, s.Flush(testContext(t))) // they were given up
	var bufs, want [][]byte
	for _, b := range h.of(s.arena.Bytes()) {
		bufs, want = append(bufs, b), append(want, slices.Clone(b))
	}
	require.NotEmpty(t, bufs, "they are written from the tier's memory")
	r.each(func(_ int, d *device.Fault) { d.Clear() }) // what is held stays so
	for i := range 16 {                                // the tier is filled twice over
		more, _ := alignedPut(sc, chainKeys(100+i, 4), size)
		more.Ack = skep.AckAccepted
		_, err := s.Put(testContext(t), more)
		require.NoError(t, err)
	}
	require.NoError(t, s.Flush(testContext(t)))
	for i := range bufs {
		require.True(t, bytes.Equal(want[i], bufs[i]), "memory of write %d is somebody else's", i)
	}
	letGo(t, r)
}

// Memory that a drive cannot get at is its owner's fault: a put out of it is refused, a restore
// into it goes another way, and no drive is blamed, however often that happens.
func TestMemoryADriveCannotUse(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, _ := openRig(t, func(o *Options) { o.DeviceCount = 1 })
	defer func() { require.NoError(t, s.Close()) }()
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	keys := chainKeys(1, 2)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 8<<10))
	d := s.members.Opened[0]
	req, mem := alignedPut(sc, chainKeys(2, 1), 8<<10)
	dest := device.AlignedBuffer(2 * 8 << 10)
	bad := func(o *device.Op) bool {
		return len(o.Bufs) > 0 && (liesIn(o.Bufs[0], mem) || liesIn(o.Bufs[0], dest))
	}
	rule := r.faults[0].MustInject(device.Rule{Action: device.Fail, Err: syscall.EFAULT, Match: bad})
	for range 2 * health.FailuresInARow {
		_, err := s.Put(ctx, req)
		requireKind(t, skep.Invalid, err)
		list, err := fetch(ctx, s, skep.Chain{Scope: sc, Keys: keys, Dest: skep.Destination{Memory: dest, Stride: 8 << 10}})
		require.NoError(t, err)
		for i, g := range list {
			require.NoError(t, g.err)
			require.True(t, bytes.Equal(content(keys[i], skep.PartKV, 1, 8<<10), g.data))
		}
	}
	require.GreaterOrEqual(t, rule.Fired(), 4*health.FailuresInARow)
	require.Zero(t, d.Dev.Stats().Errors())
	for range health.FailuresInARow - 1 { // as many as before: none was counted
		require.False(t, d.Standing.Writes.Note(true))
	}
	require.True(t, d.Standing.Writes.Note(true))
	d.Standing.Writes.Forget()
	require.Equal(t, health.Healthy, d.Condition())
	rule.Remove()
	res, err := s.Put(ctx, req)
	require.NoError(t, err)
	requireOutcome(t, skep.Committed, res)
}

// heapPut puts out of memory that is nobody else's: it does not matter when drives let go of it.
func heapPut(ctx context.Context, s *Store, r *skep.PutRequest) ([]skep.PutResult, error) {
	res, err := s.Put(ctx, r)
	err, _ = skep.Held(err)
	return res, err
}
