package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// values is a store with small values in it: each of a size that shares a page, in a
// namespace without chains.
type values struct {
	*testing.T
	s     *Store
	o     Options
	sc    skep.Scope
	keys  []skep.Key
	bytes map[skep.Key][]byte
}

// valueSizes are drawn from: both ends of what shares a page, what does not, and between.
func valueSize(rng *rand.Rand) int {
	edges := []int{513, 1024, 1025, 2048, 3072, 3073, 3583, 3584}
	if rng.IntN(3) == 0 {
		return edges[rng.IntN(len(edges))]
	}
	return 513 + rng.IntN(3072)
}

// putValues puts n values of the given size (0: each of its own), batch of them at a time.
func (v *values) putValues(rng *rand.Rand, n, batch, size int) {
	v.Helper()
	var r skep.PutRequest
	r.Scope = v.sc
	for i := range n {
		k := keyOf(uint32(len(v.keys)), rng.Uint32())
		v.keys = append(v.keys, k)
		m := size
		if m == 0 {
			m = valueSize(rng)
		}
		v.bytes[k] = content(k, "value", len(v.keys), m)
		r.Blocks = append(r.Blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: v.bytes[k]}}})
		if len(r.Blocks) == batch || i == n-1 {
			res, err := v.s.Put(testContext(v.T), &r)
			require.NoError(v.T, err)
			requireOutcome(v.T, skep.Committed, res)
			r.Blocks = nil
		}
	}
}

// require requires that every value is there: lent, and in memory of the test's.
func (v *values) require() {
	v.Helper()
	ctx := testContext(v.T)
	for _, into := range []bool{false, true} {
		c := skep.Chain{Scope: v.sc, Keys: v.keys}
		if into {
			c.Dest = skep.Destination{Memory: device.AlignedBuffer(len(v.keys) * layout.PageSize), Stride: layout.PageSize}
		}
		list, err := fetch(ctx, v.s, c)
		require.NoError(v.T, err)
		for i, g := range list {
			require.NoError(v.T, g.err, "value %d, %v", i, into)
			require.True(v.T, bytes.Equal(v.bytes[v.keys[i]], g.data), "bytes of value %d of %d, %v", i, len(v.bytes[v.keys[i]]), into)
		}
	}
}

func openValues(t *testing.T, copies int, sealed bool, tune func(*Options)) *values {
	o := small(tempRoot(t, "store"))
	o.DeviceCount, o.CapacityBytes, o.CacheBytes, o.BlockBytes = 3, 12<<20, -1, 4<<10
	if sealed {
		o.EncryptionKeys = oneKey("t", 3)
	}
	if tune != nil {
		tune(&o)
	}
	v := &values{T: t, o: o, bytes: map[skep.Key][]byte{}}
	v.open()
	v.sc = openSpace(t, v.s, "values", skep.Durable, copies, false)
	return v
}

func (v *values) open() {
	v.Helper()
	s, err := Open(testContext(v.T), v.o)
	require.NoError(v.T, err)
	v.s = s
}

func (v *values) close() {
	v.Helper()
	require.NoError(v.T, v.s.Close())
}

// pagesTaken is how many pages the values lie in, copies counted, and how many of those
// they share.
func (v *values) pagesTaken() (pages, shared int) {
	type at struct {
		group, page uint32
		device      uint8
	}
	n := map[at]int{}
	for _, rec := range recordsOf(v.T, v.s) {
		require.True(v.T, rec.PlacesFit())
		for _, p := range rec.Copies {
			n[at{p.Group, p.Page, p.Device}]++
		}
	}
	for _, k := range n {
		if k > 1 {
			shared++
		}
	}
	return len(n), shared
}

// kinds runs a test with one and two copies, encrypted and not.
func kinds(t *testing.T, test func(t *testing.T, copies int, sealed bool)) {
	for _, copies := range []int{1, 2} {
		for _, sealed := range []bool{false, true} {
			t.Run(fmt.Sprintf("copies=%d encrypted=%v", copies, sealed), func(t *testing.T) { test(t, copies, sealed) })
		}
	}
}

// Values of one put share pages, and come back whole: at once, after a restart, after a
// kill, and from the devices alone.
func TestSmallValuesSharePages(t *testing.T) {
	t.Parallel()
	kinds(t, func(t *testing.T, copies int, sealed bool) {
		rng := newRand(testSeed(t))
		v := openValues(t, copies, sealed, nil)
		v.putValues(rng, 256, 64, 1024)
		pages, _ := v.pagesTaken()
		require.LessOrEqual(t, pages, 256/4*copies+2*copies, "four of 1 KiB to a page, but where a group ends")
		v.putValues(rng, 300, 1+rng.IntN(100), 0)
		v.require()
		require.Empty(t, unsound(v.s))
		rep, err := v.s.Scrub(testContext(t), ScrubOptions{})
		require.NoError(t, err)
		require.True(t, rep.Sound(), "%+v", rep)
		v.close()

		v.open()
		v.require()
		v.close()

		sound, err := Verify(testContext(t), v.o, VerifyOptions{Deep: true})
		require.NoError(t, err)
		require.True(t, sound.Sound, "%+v", sound)
		require.EqualValues(t, len(v.keys), sound.Blocks)

		require.NoError(t, os.RemoveAll(filepath.Join(v.o.Dir, "catalog")))
		v.open() // makes it anew
		v.require()
		v.close()
		sound, err = Verify(testContext(t), v.o, VerifyOptions{Deep: true})
		require.NoError(t, err)
		require.True(t, sound.Sound, "%+v", sound)
	})
}

// A value that is put alone has a page of its own; cleaning packs what lay alone, and what
// lives on next to what was deleted, and takes the room of the rest.
func TestCleaningPacksSmallValues(t *testing.T) {
	t.Parallel()
	kinds(t, func(t *testing.T, copies int, sealed bool) {
		rng := newRand(testSeed(t))
		v := openValues(t, copies, sealed, nil)
		v.putValues(rng, 120, 1, 900)
		alone, shared := v.pagesTaken()
		if v.s.count.MovedBytes.Load() == 0 { // nothing was moved behind our back
			require.Equal(t, [2]int{120 * copies, 0}, [2]int{alone, shared})
		}
		v.putValues(rng, 300, 50, 900)
		v.putValues(rng, 60, 20, 0)
		ctx := testContext(t)
		var kept, gone []skep.Key
		for i, k := range v.keys { // neighbours of what stays
			if i%3 == 0 {
				kept = append(kept, k)
			} else {
				gone = append(gone, k)
			}
		}
		n, err := v.s.Delete(ctx, v.sc, gone)
		require.NoError(t, err)
		require.Equal(t, len(gone), n)
		v.keys = kept
		v.require()
		before, _ := v.pagesTaken()
		_, err = v.s.Compact(ctx, MoveOptions{All: true})
		require.NoError(t, err)
		v.require()
		after, _ := v.pagesTaken()
		require.Less(t, after, len(kept)*copies/2, "%d values in %d pages before", len(kept), before)
		rep, err := v.s.Scrub(ctx, ScrubOptions{})
		require.NoError(t, err)
		require.True(t, rep.Sound(), "%+v", rep)
		v.close()
		v.open()
		v.require()
		v.close()
	})
}

// The group's live bytes are the slots that its values take.
func TestSmallValuesAreChargedTheirPart(t *testing.T) {
	t.Parallel()
	v := openValues(t, 1, false, nil)
	defer v.close()
	v.putValues(newRand(testSeed(t)), 100, 100, 600) // two slots each
	m, err := v.s.StripeMap(testContext(t))
	require.NoError(t, err)
	var live int64
	for _, g := range m.Groups {
		live += g.LiveBytes
	}
	require.EqualValues(t, 100*1024, live)
	_, err = v.s.Delete(testContext(t), v.sc, v.keys[:40])
	require.NoError(t, err)
	m, err = v.s.StripeMap(testContext(t))
	require.NoError(t, err)
	live = 0
	for _, g := range m.Groups {
		live += g.LiveBytes
	}
	require.EqualValues(t, 60*1024, live)
}

// restoreAll restores a chain into its destination, all of it.
func restoreAll(t testing.TB, s *Store, c skep.Chain) {
	ses, err := s.Restore(testContext(t), &skep.RestoreRequest{Chains: []skep.Chain{c}})
	require.NoError(t, err)
	into := make([]skep.Chunk, 16)
	for {
		n, err := ses.Next(testContext(t), into)
		for _, c := range into[:n] {
			require.NoError(t, c.Err)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
	}
	require.NoError(t, ses.Close(testContext(t)))
}

// What a read writes to a caller's memory is the value's bytes and nothing of the values
// beside it, whatever the destination looks like.
func TestNeighboursStayOutOfTheDestination(t *testing.T) {
	t.Parallel()
	shape := skep.Shape{Kind: skep.Attention, Layers: 2, KVHeads: 1, HeadDim: 32, Element: skep.BF16, BlockTokens: 8} // 2 KiB
	for _, inPlace := range []bool{false, true} {
		o := small(tempRoot(t, "store"))
		o.DeviceCount, o.CacheBytes, o.ReadInPlace = 1, -1, inPlace
		s, err := Open(testContext(t), o)
		require.NoError(t, err)
		n, err := s.OpenNamespace(testContext(t), skep.NamespaceSpec{Tenant: "t", Name: "fixed", Shape: shape, Class: skep.Durable, Chained: true})
		require.NoError(t, err)
		sc, keys := skep.Scope{Namespace: n.ID}, chainKeys(1, 12)
		requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 2048))
		for _, rec := range recordsOf(t, s) {
			require.EqualValues(t, 1, rec.Pages)
		}
		for _, stride := range []int64{0, 2048, 3000, 4096} {
			step := stride
			if step == 0 {
				step = layout.PageSize
			}
			mem := device.AlignedBuffer(len(keys) * layout.PageSize)
			for i := range mem {
				mem[i] = 0xee
			}
			restoreAll(t, s, skep.Chain{Scope: sc, Keys: keys, Dest: skep.Destination{Memory: mem, Stride: stride}})
			for i, k := range keys {
				at := int64(i) * step
				require.True(t, bytes.Equal(content(k, skep.PartKV, 1, 2048), mem[at:at+2048]), "block %d, stride %d", i, stride)
				end := at + step
				require.Equal(t, bytes.Repeat([]byte{0xee}, int(end-at-2048)), mem[at+2048:end], "after block %d, stride %d", i, stride)
			}
		}
		// Layers of it, tail first.
		mem := make([]byte, len(keys)*2048)
		restoreAll(t, s, skep.Chain{Scope: sc, Keys: keys, Direction: skep.LayersDown, Layers: skep.Only(1, 2),
			Dest: skep.Destination{Memory: mem, Stride: 2048}})
		for i, k := range keys {
			require.Equal(t, make([]byte, 1024), mem[i*2048:i*2048+1024])
			require.True(t, bytes.Equal(content(k, skep.PartKV, 1, 2048)[1024:], mem[i*2048+1024:(i+1)*2048]))
		}
		require.NoError(t, s.Close())
	}
}

// Memory that is lent for a value, and what the DRAM tier keeps of it, has nothing of the
// values beside it.
func TestNeighboursAreNotLent(t *testing.T) {
	t.Parallel()
	v := openValues(t, 1, false, func(o *Options) { o.CacheBytes = 4 << 20 })
	defer v.close()
	v.putValues(newRand(testSeed(t)), 40, 40, 700)
	ctx := testContext(t)
	for range 2 { // from the drive, then from memory
		ses, err := v.s.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: v.sc, Keys: v.keys}}})
		require.NoError(t, err)
		into := make([]skep.Chunk, len(v.keys))
		for got := 0; got < len(v.keys); {
			n, err := ses.Next(ctx, into)
			require.NoError(t, err)
			for _, c := range into[:n] {
				require.NoError(t, c.Err)
				require.Len(t, c.Data, 1)
				d := c.Data[0]
				require.True(t, bytes.Equal(v.bytes[v.keys[c.Block]], d))
				rest := d[len(d):min(cap(d), layout.PageSize)]
				require.Equal(t, make([]byte, len(rest)), rest, "what follows value %d", c.Block)
				c.Release()
			}
			got += n
		}
		require.NoError(t, ses.Close(ctx))
	}
}

// pageAt is where a copy's page lies on its drive.
func pageAt(s *Store, p layout.Location) (*space.Drive, int64) {
	g := s.space.Find(p.Group)
	return g.Drives[p.Device], g.Drives[p.Device].SegmentOffset(g.Segments[p.Device]) + int64(p.Page)*layout.PageSize
}

// A page of several values that is damaged: with a copy all are served from that and
// repaired, with none all of it is a miss; and of the values beside it nothing is touched.
func TestDamagedSharedPage(t *testing.T) {
	t.Parallel()
	kinds(t, func(t *testing.T, copies int, sealed bool) {
		for _, scrub := range []bool{false, true} {
			rng := newRand(testSeed(t))
			v := openValues(t, copies, sealed, nil)
			v.putValues(rng, 64, 64, 900) // two slots
			rows := recordsOf(t, v.s)
			var hit layout.Location
			for _, r := range rows {
				if hit = r.Copies[0]; hit.Sub == 2 {
					break
				}
			}
			in := map[skep.Key]bool{} // what lies in that page in its first copy
			for _, r := range rows {
				for _, p := range r.Copies {
					if p.Group == hit.Group && p.Page == hit.Page && p.Device == hit.Device {
						in[r.Key] = true
					}
				}
			}
			require.Len(t, in, 4)
			d, off := pageAt(v.s, hit)
			harmDrive(t, d, off, layout.PageSize)
			ctx := testContext(t)
			if scrub {
				rep, err := v.s.Scrub(ctx, ScrubOptions{})
				require.NoError(t, err)
				if copies == 2 {
					require.EqualValues(t, 4, rep.Repaired, "%+v", rep)
				} else {
					require.EqualValues(t, 4, rep.Lost, "%+v", rep)
				}
			}
			list, err := fetch(ctx, v.s, skep.Chain{Scope: v.sc, Keys: v.keys})
			require.NoError(t, err)
			for i, g := range list {
				if copies == 1 && in[v.keys[i]] {
					require.Error(t, g.err)
					continue
				}
				require.NoError(t, g.err)
				require.True(t, bytes.Equal(v.bytes[v.keys[i]], g.data))
			}
			if copies == 2 {
				eventually(t, "what was read wrong is repaired", func() bool {
					v.require()
					for _, r := range recordsOf(t, v.s) {
						for _, p := range r.Copies {
							if in[r.Key] && p.Group == hit.Group && p.Page == hit.Page && p.Device == hit.Device && r.Copies[0] == p {
								return false
							}
						}
					}
					return true
				})
				v.require()
			}
			v.close()
			v.open()
			if copies == 2 {
				v.require()
			}
			v.close()
		}
	})
}

// One slot of a page is damaged: the values beside it are read as ever, and only the one is
// moved.
func TestDamagedSlot(t *testing.T) {
	t.Parallel()
	v := openValues(t, 2, false, nil)
	defer v.close()
	v.putValues(newRand(testSeed(t)), 64, 64, 900)
	before := recordsOf(t, v.s)
	var hurt segment.Record
	for _, hurt = range before {
		if hurt.Copies[0].Sub == 4 {
			break
		}
	}
	d, off := pageAt(v.s, hurt.Copies[0])
	harmDrive(t, d, off+4*layout.SlotSize, 1)
	rep, err := v.s.Scrub(testContext(t), ScrubOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 1, rep.Repaired, "%+v", rep)
	v.require()
	after := map[skep.Key]segment.Record{}
	for _, r := range recordsOf(t, v.s) {
		after[r.Key] = r
	}
	for _, r := range before {
		if r.Key == hurt.Key {
			require.NotEqual(t, r.Copies, after[r.Key].Copies)
		} else {
			require.Equal(t, r.Copies, after[r.Key].Copies)
		}
	}
}

// A record that names slots which its block cannot lie in is damage, wherever it is met.
func TestSlotsOutsideThePage(t *testing.T) {
	t.Parallel()
	v := openValues(t, 1, false, nil)
	v.putValues(newRand(testSeed(t)), 8, 8, 2000)
	b := v.s.catalog.NewBatch()
	for l, rec := range recordsOf(t, v.s) {
		if rec.Copies[0].Sub == 4 {
			rec.Copies[0].Sub = 7
			b.PutBlock(l, rec.Append(nil))
		}
	}
	require.NoError(t, v.s.catalog.Commit(testContext(t), b, true))
	list, err := fetch(testContext(t), v.s, skep.Chain{Scope: v.sc, Keys: v.keys})
	require.NoError(t, err)
	bad := 0
	for i, g := range list {
		if g.err != nil {
			requireKind(t, skep.Damaged, g.err)
			bad++
			continue
		}
		require.True(t, bytes.Equal(v.bytes[v.keys[i]], g.data))
	}
	require.Equal(t, 4, bad)
	_, err = v.s.Scrub(testContext(t), ScrubOptions{DryRun: true})
	require.NoError(t, err)
	v.close()
	rep, err := Verify(testContext(t), v.o, VerifyOptions{})
	require.NoError(t, err)
	require.False(t, rep.Sound)
	require.Contains(t, fmt.Sprint(rep.Faults), "slots of a page that it cannot lie in")
}

// A drive that does not answer is read around, though the copies of a value be in other
// slots of their pages.
func TestSmallValuesAreReadAroundAHungDrive(t *testing.T) {
	t.Parallel()
	r := &rig{}
	v := openValues(t, 2, false, func(o *Options) { o.OpenDevice, o.CatalogFS = r.open, vfs.NewMem() })
	v.putValues(newRand(testSeed(t)), 3, 3, 900) // slots 0, 2 and 4 of a page
	v.s.space.SealOpen(space.User)
	ctx, b := testContext(t), v.s.catalog.NewBatch()
	var first *space.Drive
	for l, rec := range recordsOf(t, v.s) { // the copy of the last goes to slot 6
		if rec.Copies[1].Sub < 4 {
			continue
		}
		page := device.AlignedBuffer(layout.PageSize)
		d, at := pageAt(v.s, rec.Copies[1])
		require.NoError(t, device.ReadAt(ctx, d.Dev, page, at))
		copy(page[6*layout.SlotSize:], page[4*layout.SlotSize:6*layout.SlotSize])
		clear(page[4*layout.SlotSize : 6*layout.SlotSize])
		require.NoError(t, device.WriteAt(ctx, d.Dev, page, at))
		rec.Copies[1].Sub = 6
		b.PutBlock(l, rec.Append(nil))
		first, _ = pageAt(v.s, rec.Copies[0])
	}
	require.NoError(t, v.s.catalog.Commit(ctx, b, true))
	rep, err := v.s.Scrub(ctx, ScrubOptions{DryRun: true})
	require.NoError(t, err)
	require.Zero(t, rep.BadCopies, "%+v", rep)
	held := r.faults[first.Index]
	held.MustInject(device.Rule{Action: device.Hold, Kinds: device.Reads})
	v.require()
	require.Positive(t, v.s.count.ReadAround.Load())
	held.Clear()
	held.Release()
	v.require()
	v.close()
}

// The cleaner writes what it keeps of a group together: also of namespaces whose values
// lie between each other's.
func TestCleanerPacksSmallValues(t *testing.T) {
	t.Parallel()
	v := openValues(t, 2, false, nil)
	defer v.close()
	w := &values{T: t, s: v.s, o: v.o, bytes: map[skep.Key][]byte{}, sc: openSpace(t, v.s, "others", skep.Cache, 1, false)}
	rng := newRand(testSeed(t))
	for range 40 {
		v.putValues(rng, 1, 1, 900)
		w.putValues(rng, 1, 1, 900)
	}
	busy := ""
	defer func() { t.Log(busy) }()
	for i, st := range []space.Stream{space.User, space.Kept} {
		v.s.space.SealOpen(st)
		for _, num := range v.s.space.Numbers(0) {
			g := v.s.space.Find(num)
			if g == nil {
				continue // it was cleaned meanwhile, unasked
			}
			var err error
			eventually(t, "the group's appends have ended", func() bool {
				if err = v.s.cleaner.Clean(testContext(t), g, true); err == space.ErrBusy {
					// Opened since: for the namespaces' log, by a cleaning unasked, by moves off a drive taken for a slow one.
					for st := range space.Streams {
						v.s.space.SealOpen(st)
					}
					v.s.space.Inside().Lock()
					busy = fmt.Sprintf("group %d: %v, %d writes pending, %d under way", num, g.Life.State(), g.Pending, len(g.Writing))
					v.s.space.Inside().Unlock()
				}
				return err != space.ErrBusy
			})
			require.NoError(t, err)
		}
		pages, _ := v.pagesTaken()
		require.Less(t, pages, 120/2, "cleaned %d times", i+1)
		v.require()
		w.require()
	}
}

// Two rows that claim one slot are found.
func TestTwoOwnersOfASlot(t *testing.T) {
	t.Parallel()
	v := openValues(t, 1, false, nil)
	v.putValues(newRand(testSeed(t)), 8, 8, 1000)
	b := v.s.catalog.NewBatch()
	for l, rec := range recordsOf(t, v.s) {
		if rec.Copies[0].Sub == 2 {
			b.DeleteBlock(l)
			rec.Copies[0].Sub, l.Sub = 1, 1
			b.PutBlock(l, rec.Append(nil))
			break
		}
	}
	require.NoError(t, v.s.catalog.Commit(testContext(t), b, true))
	v.close()
	rep, err := Verify(testContext(t), v.o, VerifyOptions{})
	require.NoError(t, err)
	require.False(t, rep.Sound)
	require.Contains(t, fmt.Sprint(rep.Faults), "it lies where block")
}

func TestSlotsOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pages int
		bytes int64
		want  int
	}{{0, 400, 0}, {1, 513, 2}, {1, 1024, 2}, {1, 1025, 3}, {1, 3584, 7}, {1, 3585, 8}, {1, 4096, 8}, {2, 1400, 16}, {2, 5000, 16}, {1, 1, 1}} {
		require.Equal(t, c.want, layout.SlotsOf(c.pages, c.bytes), "%+v", c)
	}
}
