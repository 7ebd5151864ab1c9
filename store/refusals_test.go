package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/gate"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// Bad input is refused by name, and changes nothing.
func TestRefusedByName(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, _, o := openRig(t, nil)
	sc := openSpace(t, s, "n", skep.Durable, 1, true)
	keys := chainKeys(1, 3)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys[:2], 8<<10))
	spec := skep.NamespaceSpec{Tenant: "t", Name: "more", Shape: anySize, Class: skep.Durable, Copies: 1}
	for field, err := range map[string]error{
		"depth": func() error { // its parent is at depth 1
			_, err := s.Put(ctx, putRequest(sc, &keys[1], 7, keys[2:], 8<<10))
			return err
		}(),
		"salt": s.Purge(ctx, skep.Purge{Salt: &sc}),
		"program length in bytes": func() error {
			_, err := s.Hint(ctx, sc, keys, skep.Hint{Program: string(make([]byte, skep.MaxNameSize+1))})
			return err
		}(),
		"copies": func() error {
			spec := spec
			spec.Copies = 3 // on two devices
			_, err := s.OpenNamespace(ctx, spec)
			return err
		}(),
		"namespaces": func() error {
			for id := range skep.NamespaceID(namespaces.MaxNamespaces) {
				if s.names.Get(id) == nil {
					ns := &namespaces.Namespace{Info: skep.NamespaceInfo{ID: id}}
					s.names.Publish(ns)
					defer s.names.Remove(ns)
				}
			}
			_, err := s.OpenNamespace(ctx, spec)
			return err
		}(),
	} {
		var e *skep.Error
		require.ErrorAs(t, err, &e, field)
		require.Equal(t, skep.Invalid, e.Kind, "%v", err)
		require.Equal(t, field, e.Field)
	}
	requireChain(t, s, sc, keys[:2], 8<<10)
	require.NoError(t, s.Close())
	o.ReadOnly = true
	s, err := Open(testContext(t), o) // the many namespaces may have taken long
	require.NoError(t, err)
	_, err = s.OpenNamespace(testContext(t), spec)
	requireKind(t, skep.ReadOnly, err)
	require.NoError(t, s.Close())
}

// A put of a key that another is putting waits for it: until its own time is over, or the
// store is closed.
func TestAPutWaitsForAnotherOfItsKey(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, _ := openRig(t, unjudged)
	sc := openSpace(t, s, "n", skep.Durable, 1, true)
	keys := chainKeys(1, 1)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(2, 1), 8<<10)) // so that there is a group
	eventually(t, "no write but the first's will be held", func() bool { return !s.space.Sparing() })
	r.each(func(_ int, d *device.Fault) { d.Hold(device.Write) })
	first, third := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := s.Put(ctx, putRequest(sc, nil, 0, keys, 8<<10))
		first <- err
	}()
	require.NoError(t, waitHeld(r, 1))
	for _, ack := range []skep.Ack{skep.AckCommitted, skep.AckAccepted} {
		put := putRequest(sc, nil, 0, keys, 8<<10)
		put.Ack = ack
		_, err := s.Put(brief(t), put)
		requireKind(t, skep.Deadline, err)
	}
	go func() {
		_, err := s.Put(ctx, putRequest(sc, nil, 0, keys, 8<<10))
		third <- err
	}()
	eventually(t, "both are under way", func() bool {
		bytes, _ := s.calls.Under()
		return bytes == 2*putState(1)
	})
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	requireKind(t, skep.Closed, <-third)
	r.each(func(_ int, d *device.Fault) { d.Release() })
	require.NoError(t, <-first)
	require.NoError(t, <-closed)
}

// A large put of which the first part cannot be finished in time begins no more of it.
func TestALargePutEndsAtItsDeadline(t *testing.T) {
	t.Parallel()
	s, r, _ := openRig(t, func(o *Options) {
		unjudged(o)
		o.CapacityBytes, o.SegmentBytes, o.BlockBytes = 256<<20, 8<<20, 1<<20
	})
	sc := openSpace(t, s, "n", skep.Cache, 1, false)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(2, 1), 8<<10))
	eventually(t, "groups are ready for what follows", func() bool { return !s.space.Sparing() })
	r.each(func(_ int, d *device.Fault) { d.Hold(device.Write) })
	ctx, cancel := context.WithCancel(testContext(t))
	put := make(chan error, 1)
	go func() {
		_, err := heapPut(ctx, s, putRequest(sc, nil, 0, chainKeys(1, 80), 1<<20))
		put <- err
	}()
	require.NoError(t, waitHeld(r, 2))
	eventually(t, "what may be under way is", func() bool { return s.root.Last() > 0 && r.held() > 48 })
	cancel()
	requireKind(t, skep.Deadline, <-put)
	r.each(func(_ int, d *device.Fault) { d.Release() })
	require.NoError(t, s.Close())
}

func (b *rig) held() (n int) {
	b.each(func(_ int, d *device.Fault) { n += d.Held() })
	return n
}

// Who waits for room, or for a group that is being opened, does so for as long as it may.
func TestWaitsForRoomEnd(t *testing.T) {
	t.Parallel()
	s, _, _ := openRig(t, func(o *Options) {
		o.SegmentBytes, o.CapacityBytes, o.SpaceTimeout = 64<<10, 2*(4*64<<10+8<<10), 10*time.Millisecond
	})
	sc := openSpace(t, s, "n", skep.Durable, 1, false)
	for i := 0; ; i++ {
		if putRun(t, s, sc, chainKeys(i, 1), 16<<10)[0].Outcome == skep.Declined {
			break
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	s.cleaner.Loan.Store(1) // there will be room soon, as far as anybody knows
	s.space.Inside().LastRound.Store(0)
	_, err := s.space.Current(ended, space.User, time.Now().Add(hangs))
	requireKind(t, skep.Deadline, err)
	s.cleaner.Loan.Store(0)

	require.NoError(t, s.space.TakeOpening(t.Context(), "put"))
	requireKind(t, skep.Deadline, s.space.TakeOpening(ended, "put"))
	s.space.Opening.Give()

	// Spares are groups that could be opened; no segment is left to make another of.
	s.space.Inside().Lock()
	spares := s.space.Inside().Spares
	s.space.Inside().Spares = []*space.Group{{}, {}}
	for _, d := range s.members.Opened {
		d.Free = nil
	}
	s.space.Inside().Unlock()
	_, err = s.space.NewGroup(t.Context(), 1)
	require.Equal(t, space.ErrFull, err)
	s.space.Inside().Lock()
	s.space.Inside().Spares = spares
	s.space.Inside().Unlock()
	require.NoError(t, s.Close())
	require.NoError(t, s.space.TakeOpening(t.Context(), "put"))
	require.Equal(t, gate.ErrClosed, s.space.TakeOpening(t.Context(), "put"))
}

// Entries that no group's drives flush are given up after some tries, and tried again later.
func TestLogEntriesOnDrivesThatDoNotFlush(t *testing.T) {
	t.Parallel()
	s, r, _ := openRig(t, func(o *Options) { unjudged(o); o.CapacityBytes = 16 << 20 })
	var w segment.LogWriter
	require.NoError(t, w.Tombstone(&segment.Tombstone{Seq: 1, Covers: 1}))
	r.each(func(_ int, d *device.Fault) { d.MustInject(device.Rule{Action: device.Fail, Kinds: device.Flushes}) })
	requireKind(t, skep.DeviceFailed, s.appends.Entries(testContext(t), space.User, 0, w.Bytes()))
	r.each(func(_ int, d *device.Fault) { d.Clear() })
	eventually(t, "the drives are let back in", func() bool { return s.appends.Entries(testContext(t), space.User, 0, w.Bytes()) == nil })
	require.NoError(t, s.Close())
}

// An encrypted put that finds no memory to encrypt into waits, and then says so.
func TestSealingWithoutMemory(t *testing.T) {
	t.Parallel()
	s, _, _ := openRig(t, func(o *Options) { o.EncryptionKeys = oneKey("t", 1) })
	sc := openSpace(t, s, "n", skep.Durable, 1, true)
	var taken []skep.Memory
	for n := s.options.IOBytes / 4; n >= layout.PageSize; n /= 2 {
		for {
			m, err := s.Alloc(brief(t), n)
			if err != nil {
				break
			}
			taken = append(taken, m)
		}
	}
	_, err := s.Put(brief(t), putRequest(sc, nil, 0, chainKeys(1, 1), 8<<10))
	require.Error(t, err)
	for _, m := range taken {
		m.Release()
	}
	requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(1, 1), 8<<10))
	require.NoError(t, s.Close())
}

// What stands where a store is to be made is never written over.
func TestNoStoreIsMadeOverWhatIsThere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	other := small(filepath.Join(dir, "other"))
	s, err := Open(context.Background(), other)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	s = openTest(t, small(filepath.Join(dir, "third")))
	requireKind(t, skep.Foreign, s.AddDevice(testContext(t), NewDevice{Path: filepath.Join(other.Dir, "device-0")}))
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, []byte("somebody's"), 0o644))
	raw := func(fill func(m *device.Memory), rule *device.Rule) func(int, string, bool, int64) (device.Device, error) {
		return func(int, string, bool, int64) (device.Device, error) {
			m := device.NewMemory(4 << 20)
			fill(m)
			d := device.NewFault(m, 1)
			if rule != nil {
				d.MustInject(*rule)
			}
			return d, nil
		}
	}
	nothing := func(*device.Memory) {}
	for i, c := range []struct {
		name string
		want skep.Kind
		path string
		open func(int, string, bool, int64) (device.Device, error)
	}{
		{"somebody's file", skep.Foreign, file, nil},
		{"a path through a file", skep.Other, filepath.Join(file, "device"), nil},
		{"a device that does not open", skep.DeviceFailed, filepath.Join(dir, "none"), func(int, string, bool, int64) (device.Device, error) { return nil, syscall.EIO }},
		{"a raw device with data on it", skep.Foreign, dir, raw(func(m *device.Memory) { writeAll(m, []byte("data")) }, nil)},
		{"a raw device of another store", skep.Foreign, dir, raw(func(m *device.Memory) { writeAll(m, superblockOf(t, other)) }, nil)},
		{"a raw device that cannot be read", skep.DeviceFailed, dir, raw(nothing, &device.Rule{Action: device.Fail, Kinds: device.Reads})},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := small(filepath.Join(dir, "new"+strconv.Itoa(i)))
			o.Devices, o.DeviceCount, o.OpenDevice = []string{c.path}, 0, c.open
			o.CapacityBytes = 2 << 20
			_, err := Open(context.Background(), o)
			requireKind(t, c.want, err)
		})
	}
}

func writeAll(d device.Device, b []byte) {
	page := device.AlignedBuffer(layout.PageSize)
	copy(page, b)
	if err := errors.Join(device.WriteAt(context.Background(), d, page, 0), device.Sync(context.Background(), d)); err != nil {
		panic(err)
	}
}

// superblockOf is the first superblock of a closed store on files.
func superblockOf(t *testing.T, o Options) []byte {
	b, err := os.ReadFile(filepath.Join(o.Dir, "device-0"))
	require.NoError(t, err)
	return b[:layout.PageSize]
}

// A catalog whose groups do not fit the devices, or whose rows do not fit the index, does not
// open.
func TestACatalogThatDoesNotFit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		group  catalog.Member
		change func(o *Options)
		want   skep.Kind
	}{
		{"a group on a device there is not", catalog.Member{Device: 9}, nil, skep.Damaged},
		{"a group beyond a device's end", catalog.Member{Device: 1, Segment: 1 << 20}, nil, skep.Missing},
		{"more blocks than the index may hold", catalog.Member{}, func(o *Options) { o.IndexBytes, o.BlockBytes = 8*index.BytesPerBlock("cost"), 512<<20 }, skep.Full},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, _, o := openRig(t, nil)
			sc := openSpace(t, s, "n", skep.Durable, 1, true)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(1, 40), 600))
			require.NoError(t, s.Close())
			if c.group != (catalog.Member{}) {
				k, err := catalog.Open(o.catalogDir(), catalog.Options{FS: o.CatalogFS})
				require.NoError(t, err)
				b := k.NewBatch()
				b.PutGroup(&catalog.GroupState{Group: 77, Generation: 1, State: catalog.GroupSealed, Devices: []catalog.Member{c.group}, SegmentBytes: o.SegmentBytes, Copies: 1})
				require.NoError(t, k.Commit(testContext(t), b, true))
				require.NoError(t, k.Close())
			}
			if c.change != nil {
				c.change(&o)
			}
			_, err := Open(context.Background(), o)
			requireKind(t, c.want, err)
		})
	}
}

// Devices of which no one store can be made are refused by a rebuild, by name.
func TestDevicesThatARebuildRefuses(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, o := openRig(t, nil)
	sc := openSpace(t, s, "n", skep.Durable, 1, true)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(1, 10), 8<<10))
	_, err := Rebuild(ctx, o, true, nil)
	requireKind(t, skep.Locked, err)
	require.NoError(t, s.Close())
	mems := []*device.Memory{r.mems[0], r.mems[1]}
	with := func(change func(sb *segment.Superblock)) *device.Memory {
		m := mems[1].Clone()
		page := make([]byte, 2*layout.PageSize)
		m.Peek(0, page)
		sb, _, err := segment.ChooseSuperblock(page[:layout.PageSize], page[layout.PageSize:])
		require.NoError(t, err)
		sb.Sequence++
		change(&sb)
		b := make([]byte, layout.PageSize)
		require.NoError(t, sb.Encode(b))
		writeAll(m, b)
		return m
	}
	for _, c := range []struct {
		name   string
		second func() (device.Device, error)
		change func(o *Options)
		want   skep.Kind
	}{
		{"segments of another size", func() (device.Device, error) {
			return with(func(sb *segment.Superblock) { sb.SegmentBytes *= 2 }), nil
		}, nil, skep.Damaged},
		{"a device cut short", func() (device.Device, error) {
			return with(func(sb *segment.Superblock) { sb.DeviceBytes += 64 << 20 }), nil
		}, nil, skep.Damaged},
		{"two of one number", func() (device.Device, error) {
			return with(func(sb *segment.Superblock) { sb.DeviceIndex = 0 }), nil
		}, nil, skep.Conflict},
		{"a device without room for superblocks", func() (device.Device, error) { return device.NewMemory(layout.PageSize), nil }, nil, skep.Foreign},
		{"headers that cannot be read", func() (device.Device, error) {
			d := device.NewFault(mems[1].Clone(), 1)
			d.MustInject(device.Rule{Action: device.Fail, Kinds: device.Reads, From: layout.SegmentOffset(0, 0)})
			return d, nil
		}, nil, skep.DeviceFailed},
		{"none of them there", nil, func(o *Options) { o.Degraded = DegradedAlways }, skep.Missing},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := o
			o.CatalogFS = vfs.NewMem()
			require.NoError(t, o.CatalogFS.MkdirAll(o.Dir, 0o755))
			o.OpenDevice = func(i int, _ string, _ bool, _ int64) (device.Device, error) {
				switch {
				case c.second == nil:
					return nil, os.ErrNotExist
				case i == 1:
					return c.second()
				}
				return mems[i].Clone(), nil
			}
			if c.change != nil {
				c.change(&o)
			}
			_, err := Rebuild(ctx, o, false, nil)
			requireKind(t, c.want, err)
		})
	}
	o = small(t.TempDir())
	_, err = Rebuild(ctx, o, false, nil)
	requireKind(t, skep.Missing, err) // no device in the directory
}

// The record of a block that is nowhere any more is gone, and a comparison of logs with the
// catalog ends with its context.
func TestWhatIsGoneAndWhatIsOver(t *testing.T) {
	t.Parallel()
	s, _, _ := openRig(t, nil)
	_, err := s.rows.Record(index.Fingerprint{1}, index.Entry{})
	require.Equal(t, commit.ErrGone, err)
	sc := openSpace(t, s, "n", skep.Durable, 1, true)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(1, 1), 8<<10))
	g := openedBy(s, space.User)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.logs.Reconcile(ended, s.catalog.NewBatch(), []*space.Group{g})
	requireKind(t, skep.Deadline, err)
	require.NoError(t, s.Close())
}
