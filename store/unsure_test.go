package store

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
)

// slowLog is a file system on which syncs of the catalog's log wait while it is held.
type slowLog struct {
	mu   sync.Mutex
	gate chan struct{}
}

func (h *slowLog) String() string { return "slow log" }

func (h *slowLog) MaybeError(op errorfs.Op) error {
	h.mu.Lock()
	gate := h.gate
	h.mu.Unlock()
	if gate != nil && strings.HasSuffix(op.Path, ".log") && (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData) {
		<-gate
	}
	return nil
}

func (h *slowLog) hold() (letGo func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	gate := make(chan struct{})
	h.gate = gate
	return func() {
		h.mu.Lock()
		h.gate = nil
		h.mu.Unlock()
		close(gate)
	}
}

// A change whose commit the catalog does not answer in time may be made all the same, later:
// what memory says is not what the rows will say. So the store takes no more changes, and
// says so, until it is opened again. It went on once: a block whose put had timed out was
// not there, so that its deletion had nothing to do, and was there after a restart.
func TestACommitInDoubtEndsTheStore(t *testing.T) {
	t.Parallel()
	keys, others := chainKeys(1, 3), chainKeys(2, 1)
	for _, c := range []struct {
		name string
		do   func(ctx context.Context, s *Store, sc skep.Scope) error
	}{
		{"put", func(ctx context.Context, s *Store, sc skep.Scope) error {
			_, err := s.Put(ctx, putRequest(sc, nil, 0, others, 8<<10))
			return err
		}},
		{"delete", func(ctx context.Context, s *Store, sc skep.Scope) error {
			_, err := s.Delete(ctx, sc, keys[2:])
			return err
		}},
		{"purge of a namespace", func(ctx context.Context, s *Store, sc skep.Scope) error {
			return s.Purge(ctx, skep.Purge{Namespace: sc.Namespace})
		}},
		{"purge of a salt", func(ctx context.Context, s *Store, sc skep.Scope) error {
			return s.Purge(ctx, skep.Purge{Salt: &skep.Scope{Namespace: sc.Namespace, Salt: "user"}})
		}},
		{"a new namespace", func(ctx context.Context, s *Store, _ skep.Scope) error {
			_, err := s.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "t", Name: "new", Shape: anySize, Class: skep.Durable, Copies: 1})
			return err
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			h, mem := &slowLog{}, vfs.NewMem()
			s, _, o := openRig(t, func(o *Options) {
				o.CatalogFS, o.catalogWait, o.FlushInterval = errorfs.Wrap(mem, h), 2*time.Second, time.Minute
			})
			sc := openSpace(t, s, "n", skep.Durable, 1, true)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 8<<10))
			letGo := h.hold()
			requireKind(t, skep.Deadline, c.do(ctx, s, sc))
			letGo()
			_, err := s.Delete(ctx, sc, others)
			requireKind(t, skep.Failed, err)
			_, err = s.Put(ctx, putRequest(sc, &keys[2], 3, chainKeys(3, 1), 8<<10))
			requireKind(t, skep.Failed, err)
			require.NoError(t, s.Close())

			s, err = Open(ctx, o)
			require.NoError(t, err)
			sc = openSpace(t, s, "n", skep.Durable, 1, true)
			_, err = s.Delete(ctx, sc, others)
			require.NoError(t, err)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(4, 2), 8<<10))
			require.NoError(t, s.Close())
			s, err = Open(ctx, o)
			require.NoError(t, err)
			requireChain(t, s, sc, chainKeys(4, 2), 8<<10)
			n, _ := requireRight(t, s, sc, others, 8<<10)
			require.Zero(t, n, "what was deleted is back")
			require.NoError(t, s.Close())
			rep, err := Verify(ctx, o, VerifyOptions{Deep: true})
			require.NoError(t, err)
			require.True(t, rep.Sound, "%+v", rep.Faults)
		})
	}
}

// The machine stops when a group's row is synced and its headers are not written: the next
// open writes them, and the store is sound. Its row was taken for that of a sealed group
// without headers, which verify called a fault.
func TestHeadersThatACrashKeptAreWritten(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, crash := crashRig(t, func(o *Options) { o.SegmentBytes, o.CapacityBytes = 64<<10, 2*(12*64<<10+8<<10) })
	sc := openSpace(t, s, "n", skep.Durable, 1, true)
	atHeader := func(op *device.Op) bool { return (op.Offset-layout.SegmentOffset(0, 0))%(64<<10) == 0 }
	var rules []*device.Injected
	r.each(func(_ int, d *device.Fault) {
		rules = append(rules, d.MustInject(device.Rule{Action: device.Hold, Kinds: device.Writes, Match: atHeader}))
	})
	put := make(chan error, 1)
	go func() {
		_, err := s.Put(ctx, putRequest(sc, nil, 0, chainKeys(1, 30), 8<<10))
		put <- err
	}()
	require.NoError(t, waitHeld(r, 2))
	o := crash("a group is being opened")
	for _, rule := range rules {
		rule.Remove()
	}
	r.each(func(_ int, d *device.Fault) { d.Release() })
	require.NoError(t, <-put)
	require.NoError(t, s.Close())

	s, err := Open(ctx, o)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	rep, err := Verify(ctx, o, VerifyOptions{Deep: true})
	require.NoError(t, err)
	require.True(t, rep.Sound, "%+v", rep.Faults)
}

// The machine stops when a group is full and an append to it was written and not committed:
// the next open compares its log with the catalog, so that a rebuild does not bring back what
// is in no row. A full group was recorded as sealed while appends to it were under way, and
// was not looked at.
func TestAFullGroupIsSealedWhenItsAppendsAreCommitted(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, crash := crashRig(t, func(o *Options) {
		unjudged(o)
		o.SegmentBytes, o.CapacityBytes = 64<<10, 2*(12*64<<10+8<<10)
	})
	sc := openSpace(t, s, "n", skep.Durable, 1, false)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(1, 1), 8<<10))
	r.each(func(_ int, d *device.Fault) { d.Hold(device.Flush) })
	put := make(chan error, 2)
	keys := chainKeys(2, 6)
	go func() {
		_, err := s.Put(ctx, putRequest(sc, nil, 0, keys, 8<<10))
		put <- err
	}()
	require.NoError(t, waitHeld(r, 1))
	full := openedBy(s, space.User)
	go func() { // does not fit beside them
		_, err := s.Put(ctx, putRequest(sc, nil, 0, chainKeys(3, 9), 8<<10))
		put <- err
	}()
	eventually(t, "another group is opened", func() bool {
		s.space.Inside().Lock()
		defer s.space.Inside().Unlock()
		g := s.space.Inside().Open[space.User]
		return full.Full && g != nil && g != full && g.Pending > 0
	})
	require.NoError(t, s.catalog.Commit(ctx, s.catalog.NewBatch(), true))
	after := &rig{}
	r.each(func(_ int, d *device.Fault) { // the drives keep what they completed
		after.mems = append(after.mems, d.CrashDevice(d.Events(), nil, device.CrashOptions{KeepAll: true}))
		after.faults = append(after.faults, nil)
	})
	o := crash("two appends are not committed") // after the drives: a spare's header follows its row
	o.OpenDevice = after.open
	r.each(func(_ int, d *device.Fault) { d.Release() })
	require.NoError(t, <-put)
	require.NoError(t, <-put)
	require.NoError(t, s.Close())

	s, err := Open(ctx, o)
	require.NoError(t, err)
	n, _ := requireRight(t, s, sc, keys, 8<<10)
	require.Zero(t, n)
	require.NoError(t, s.Close())
	rep, err := Verify(ctx, o, VerifyOptions{Deep: true})
	require.NoError(t, err)
	require.True(t, rep.Sound, "%+v", rep.Faults)
}

// A put is refused by the catalog, and what it wrote stays in the log of one drive, which does not answer, or is not
// there, when the group's logs are compared with the catalog. They are not taken for compared: who deletes the block
// has a tombstone written, and when the drive is back a rebuild does not find it.
func TestALogThatCannotBeReadIsNotCompared(t *testing.T) {
	t.Parallel()
	for silent := range 2 { // the record stands on one of them
		for _, missing := range []bool{false, true} {
			t.Run(sprintf("drive %d, missing %v", silent, missing), func(t *testing.T) {
				ctx := testContext(t)
				r := &refuser{}
				s, _, crash := crashRig(t, func(o *Options) {
					unjudged(o)
					o.refuseCommits = r.refuse
				})
				sc := openSpace(t, s, "n", skep.Cache, 1, false)
				requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(1, 6), faultBlock))
				keys := chainKeys(2, 6)
				r.during(t, func() error {
					_, err := heapPut(ctx, s, putRequest(sc, nil, 0, keys, faultBlock))
					return err
				})
				require.NoError(t, s.root.Advance(ctx, s.catalog, s.space.FlushAll))
				s.space.Exclude(s.members.Opened[silent], health.Dead, segio.ErrNoDrive) // seals the group
				g := s.space.Groups()[0]
				eventually(t, "nobody writes to it", func() bool { return s.space.IsIdle(g) })
				s.logs.ReconcileStale(ctx)
				o := crash("while it does not answer")
				there := o.OpenDevice
				if missing {
					require.NoError(t, s.Close())
					o.OpenDevice = func(i int, path string, create bool, size int64) (device.Device, error) {
						if i == silent {
							return nil, os.ErrNotExist
						}
						return there(i, path, create, size)
					}
					var err error
					s, err = Open(ctx, o)
					require.NoError(t, err)
				} else {
					s.space.Include(s.members.Opened[silent], health.Healthy)
				}
				n, err := s.Delete(ctx, sc, keys)
				require.NoError(t, err)
				require.Zero(t, n)
				if !missing {
					o = crash("when it is back")
				}
				require.NoError(t, s.Close())

				if missing {
					o.OpenDevice = there
				}
				s = rebuilt(t, o)
				require.Empty(t, present(t, s, sc, keys), "deleted, and back")
				requireChain(t, s, sc, chainKeys(1, 6), faultBlock)
				require.NoError(t, s.Close())
			})
		}
	}
}
