package catalog

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/tools/drawn"
	"github.com/skepkv/skep/tools/leaks"
)

var bg = context.Background()

const testDir = "/catalog"

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// noLeaks checks that nothing the test started is left. Tests in which the catalog
// fails do not use it: what is left there is left by design.
func noLeaks(t testing.TB) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { assert.NoError(t, leaks.Find(before)) })
}

// open opens a catalog on fs and closes it when the test ends.
func open(t testing.TB, fs vfs.FS, change ...func(*Options)) *Catalog {
	o := Options{FS: fs, Logger: quiet()}
	for _, c := range change {
		c(&o)
	}
	c, err := Open(testDir, o)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	return c
}

func commit(t testing.TB, c *Catalog, sync bool, fill func(b *Batch)) {
	b := c.NewBatch()
	fill(b)
	require.NoError(t, c.Commit(bg, b, sync))
}

func rows(t testing.TB, c *Catalog, n int) map[layout.Location]string {
	var mu sync.Mutex
	all := map[layout.Location]string{}
	require.NoError(t, c.ScanBlocks(bg, n, func(_ int, l layout.Location, rec []byte) error {
		mu.Lock()
		defer mu.Unlock()
		if _, twice := all[l]; twice {
			return fmt.Errorf("%v visited twice", l)
		}
		all[l] = string(rec)
		return nil
	}))
	return all
}

// Alone: goroutines of the whole process are counted.
func TestRowsComeBackAsTheyWerePut(t *testing.T) {
	noLeaks(t)
	fs := vfs.NewMem()
	groups := []GroupState{
		{Group: 0, Generation: 1, State: GroupFree},
		{Group: 7, Generation: 1 << 60, State: GroupSealed, Devices: []Member{{0, 3}, {65535, 1<<32 - 1}}, SegmentBytes: 256 << 20,
			Copies: 2, OpenedSeq: 5, SealedSeq: 1<<64 - 1},
		{Group: 1<<32 - 1, Generation: 3, State: GroupCleaning, Devices: []Member{{1, 1}}},
	}
	namespaces := []Namespace{{NamespaceInfo: skep.NamespaceInfo{ID: 3, NamespaceSpec: skep.NamespaceSpec{Tenant: "t", Name: "n", Model: "m",
		Shape: skep.Shape{Kind: skep.Attention, Layers: 2, KVHeads: 4, HeadDim: 64, Element: skep.BF16, BlockTokens: 16, Order: skep.NHD},
		Class: skep.Durable, Copies: 2, Chained: true}, Created: time.Unix(1e9, 5).UTC()}, Instance: 12}}
	purges := []Purge{{Instance: 1, Seq: 9}, {Instance: 1, Tag: [16]byte{1}, Seq: 10}, {Instance: 2, Seq: 11}}
	devices := []DeviceState{{Index: 0, ID: [16]byte{1}, Serial: "S1", Path: "/dev/nvme0n1", Size: 1 << 42, SegmentBytes: 256 << 20, Segments: 16384},
		{Index: 65535, State: DeviceRemoved}}
	store := StoreState{StoreID: [16]byte{2}, Secret: [16]byte{3}, Clean: true, Relog: true, NextSeq: 1 << 63, FlushedSeq: 4,
		NextGroup: 5, NextInstance: 6, NextNamespace: 7, Epoch: 8, Lasting: 9, Limits: Limits{Known: true, Capacity: 1 << 45, Devices: 2}}

	c := open(t, fs)
	assert.True(t, c.Created())
	_, err := c.Store(bg)
	assert.ErrorIs(t, err, skep.NotFound, "a new catalog has no root")
	commit(t, c, true, func(b *Batch) {
		for i := range groups {
			b.PutGroup(&groups[i])
		}
		for i := range devices {
			b.PutDevice(&devices[i])
		}
		b.PutNamespace(&namespaces[0])
		for _, p := range purges {
			b.PutPurge(p)
		}
		b.PutStore(store)
		b.PutBlock(at(7, 1, 2, 3), []byte("record"))
		b.PutBlock(at(7, 1, 2, 4), nil)
		assert.Equal(t, 12, b.Len())
	})
	check := func(c *Catalog) {
		g, err := c.Groups(bg)
		require.NoError(t, err)
		require.Len(t, g, len(groups))
		for i := range g {
			want := groups[i]
			if want.Devices == nil {
				want.Devices = []Member{}
			}
			assert.Equal(t, want, g[i])
		}
		n, err := c.Namespaces(bg)
		require.NoError(t, err)
		assert.Equal(t, namespaces, n)
		p, err := c.Purges(bg)
		require.NoError(t, err)
		assert.Equal(t, purges, p)
		d, err := c.Devices(bg)
		require.NoError(t, err)
		assert.Equal(t, devices, d)
		s, err := c.Store(bg)
		require.NoError(t, err)
		assert.Equal(t, store, s)
		rec, err := c.Block(bg, at(7, 1, 2, 3), make([]byte, 0, 2))
		require.NoError(t, err)
		assert.Equal(t, "record", string(rec))
		rec, err = c.Block(bg, at(7, 1, 2, 4), nil)
		require.NoError(t, err)
		assert.Empty(t, rec)
		_, err = c.Block(bg, at(7, 1, 2, 5), nil)
		assert.ErrorIs(t, err, skep.NotFound)
	}
	check(c)
	require.NoError(t, c.Close())
	require.NoError(t, c.Close(), "closing twice")
	c = open(t, fs)
	assert.False(t, c.Created())
	check(c)
	u, err := c.Usage(bg)
	require.NoError(t, err)
	assert.Positive(t, u.Disk)

	commit(t, c, false, func(b *Batch) {
		b.DeleteNamespace(3)
		b.DeletePurge(purges[1])
	})
	n, err := c.Namespaces(bg)
	require.NoError(t, err)
	assert.Empty(t, n)
	p, err := c.Purges(bg)
	require.NoError(t, err)
	assert.Equal(t, []Purge{purges[0], purges[2]}, p)
}

// Alone: goroutines of the whole process are counted.
func TestDeleteGroupBlocksTakesOneGroupAndOnlyWhatWasThere(t *testing.T) {
	noLeaks(t)
	c := open(t, vfs.NewMem())
	last := uint32(1<<32 - 1)
	commit(t, c, false, func(b *Batch) {
		for _, g := range []uint32{4, 5, 6, last} {
			for page := range uint32(10) {
				b.PutBlock(at(g, page, 0, 0), []byte{1})
			}
		}
		b.PutDevice(&DeviceState{Index: 1})
	})
	commit(t, c, false, func(b *Batch) {
		b.DeleteGroupBlocks(5)
		b.DeleteGroupBlocks(last)
		b.PutBlock(at(5, 3, 0, 0), []byte{2})
		b.DeleteBlock(at(4, 0, 0, 0))
	})
	perGroup := map[uint32]int{}
	for l := range rows(t, c, 3) {
		perGroup[l.Group]++
	}
	assert.Equal(t, map[uint32]int{4: 9, 5: 1, 6: 10}, perGroup)
	var seen []layout.Location
	require.NoError(t, c.ScanGroup(bg, 5, func(l layout.Location, rec []byte) error {
		seen = append(seen, l)
		assert.Equal(t, []byte{2}, rec)
		return nil
	}))
	assert.Equal(t, []layout.Location{at(5, 3, 0, 0)}, seen)
	d, err := c.Devices(bg)
	require.NoError(t, err)
	assert.Len(t, d, 1, "the row kind after 'b' is untouched")
}

// Blocks and ScanBlocks against a map, with rows in tables of several levels and in
// memtables, and lists with runs, jumps, repeats and rows that are not there.
//
// Alone: goroutines of the whole process are counted.
func TestReadsAgreeWithAMap(t *testing.T) {
	noLeaks(t)
	seed := drawn.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	c := open(t, vfs.NewMem(), func(o *Options) { o.memtableBytes = 256 << 10 })
	model := map[layout.Location]string{}
	randomLoc := func() layout.Location {
		return at(rng.Uint32N(5), rng.Uint32N(400), uint8(rng.IntN(3)), uint8(rng.IntN(2)))
	}
	for range 300 {
		commit(t, c, false, func(b *Batch) {
			for range 40 {
				l := randomLoc()
				rec := make([]byte, rng.IntN(300))
				for i := range rec {
					rec[i] = byte(rng.Uint32())
				}
				b.PutBlock(l, rec)
				model[l] = string(rec)
			}
			l := randomLoc()
			b.DeleteBlock(l)
			delete(model, l)
		})
	}
	u, err := c.Usage(bg)
	require.NoError(t, err)
	require.Positive(t, u.Tables, "the test is about tables too")
	for _, n := range []int{1, 2, 7} {
		assert.Equal(t, model, rows(t, c, n), "%d goroutines", n)
	}
	for range 100 {
		var locs []layout.Location
		for len(locs) < 1+rng.IntN(200) {
			l := randomLoc()
			for range 1 + rng.IntN(30) {
				locs = append(locs, l)
				l.Page += rng.Uint32N(3)
			}
		}
		visited := make([]bool, len(locs))
		require.NoError(t, c.Blocks(bg, locs, func(i int, rec []byte) error {
			if visited[i] {
				return fmt.Errorf("%d visited twice", i)
			}
			visited[i] = true
			want, there := model[locs[i]]
			if !there && rec != nil || there && (rec == nil || want != string(rec)) {
				return fmt.Errorf("%v: got %x, want %x (%v)", locs[i], rec, want, there)
			}
			return nil
		}))
		assert.NotContains(t, visited, false)
	}
}

func TestLocationsOrderAsTheirRows(t *testing.T) {
	t.Parallel()
	seed := drawn.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 2))
	some := func() uint32 { return []uint32{0, 1, 255, 256, 1<<32 - 1, rng.Uint32()}[rng.IntN(6)] }
	for range 2000 {
		a := at(some(), some(), uint8(some()), uint8(some()))
		b := at(some(), some(), uint8(some()), uint8(some()))
		ka, kb := appendBlockKey(nil, a), appendBlockKey(nil, b)
		require.Equal(t, bytes.Compare(ka, kb), a.Compare(b))
		back, ok := parseBlockKey(ka)
		require.True(t, ok)
		require.Equal(t, a, back)
		r := groupRange(a.Group)
		require.Equal(t, a.Group == b.Group, bytes.Compare(kb, r.lower) >= 0 && bytes.Compare(kb, r.upper) < 0)
	}
}

// Alone: goroutines of the whole process are counted.
func TestScanEndsWithTheVisitorsError(t *testing.T) {
	noLeaks(t)
	c := open(t, vfs.NewMem())
	commit(t, c, false, func(b *Batch) {
		for page := range uint32(1000) {
			b.PutBlock(at(page%50, page, 0, 0), []byte{1})
		}
	})
	enough := errors.New("enough")
	assert.Equal(t, enough, c.ScanBlocks(bg, 4, func(int, layout.Location, []byte) error { return enough }))
	assert.Equal(t, enough, c.ScanGroup(bg, 1, func(layout.Location, []byte) error { return enough }))
	assert.Equal(t, enough, c.Blocks(bg, []layout.Location{at(1, 1, 0, 0)}, func(int, []byte) error { return enough }))
	assert.ErrorIs(t, c.ScanBlocks(bg, 0, nil), skep.Invalid)
	assert.PanicsWithValue(t, "mine", func() { _ = c.ScanGroup(bg, 1, func(layout.Location, []byte) error { panic("mine") }) })
	assert.NoError(t, c.Err(), "a visitor's panic is no failure of the catalog")
	ctx, cancel := context.WithCancel(bg)
	cancel()
	assert.ErrorIs(t, c.ScanGroup(ctx, 1, nil), context.Canceled)
	assert.ErrorIs(t, c.ScanBlocks(ctx, 2, nil), context.Canceled)
}

// Alone: goroutines of the whole process are counted.
func TestBadInputChangesNothing(t *testing.T) {
	noLeaks(t)
	c := open(t, vfs.NewMem())
	for name, fill := range map[string]func(*Batch){
		"record too long": func(b *Batch) { b.PutBlock(layout.Location{}, make([]byte, MaxRecordBytes+1)) },
		"negative size":   func(b *Batch) { b.PutDevice(&DeviceState{Size: -1}) },
		"negative bytes":  func(b *Batch) { b.PutGroup(&GroupState{SegmentBytes: -1}) },
	} {
		b := c.NewBatch()
		b.PutBlock(at(1, 1, 1, 1), []byte("x"))
		fill(b)
		assert.ErrorIs(t, c.Commit(bg, b, true), skep.Invalid, name)
		assert.ErrorIs(t, c.Commit(bg, b, true), skep.Invalid, "%s: a batch is for one commit", name)
	}
	assert.Empty(t, rows(t, c, 1))
	commit(t, c, true, func(*Batch) {}) // an empty one is a barrier
}

// Alone: goroutines of the whole process are counted.
func TestOpenTellsWhatItFinds(t *testing.T) {
	noLeaks(t)
	fs := vfs.NewMem()
	try := func(change func(*Options)) error {
		o := Options{FS: fs, Logger: quiet()}
		change(&o)
		c, err := Open(testDir, o)
		if err == nil {
			err = c.Close()
		}
		return err
	}
	assert.ErrorIs(t, try(func(o *Options) { o.MustExist = true }), skep.NotFound)
	assert.ErrorIs(t, try(func(o *Options) { o.ReadOnly = true }), skep.NotFound)
	_, err := Inspect(testDir, Options{FS: fs, Logger: quiet()})
	assert.ErrorIs(t, err, skep.NotFound)
	require.NoError(t, fs.MkdirAll(testDir, 0o755))
	assert.ErrorIs(t, try(func(o *Options) { o.MustExist = true }), skep.NotFound, "an empty directory")

	c := open(t, fs, func(o *Options) { o.MustNotExist = true })
	commit(t, c, true, func(b *Batch) { b.PutStore(StoreState{Epoch: 3}) })
	assert.ErrorIs(t, try(func(o *Options) {}), skep.Locked)
	require.NoError(t, c.Close())
	assert.ErrorIs(t, try(func(o *Options) { o.MustNotExist = true }), skep.Conflict)

	r := open(t, fs, func(o *Options) { o.ReadOnly = true })
	s, err := r.Store(bg)
	require.NoError(t, err)
	assert.EqualValues(t, 3, s.Epoch)
	b := r.NewBatch()
	b.DeleteBlock(layout.Location{})
	assert.ErrorIs(t, r.Commit(bg, b, false), skep.ReadOnly)
	require.NoError(t, r.Close())
	_, err = r.Store(bg)
	assert.ErrorIs(t, err, skep.Closed)
	assert.ErrorIs(t, r.Commit(bg, r.NewBatch(), false), skep.ReadOnly)

	// A newer Pebble.
	f, err := fs.Create(testDir+"/marker.format-version.000999.999", vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	assert.ErrorIs(t, try(func(o *Options) {}), skep.Version)
}

// A catalog of another format is not opened, to write or to read, and what it holds stays: also one of a
// build from before the first release, whose root row has the number where format 1 has its magic.
//
// Alone: goroutines of the whole process are counted.
func TestOtherFormats(t *testing.T) {
	noLeaks(t)
	key := []byte{rowStore}
	root := func(magic string, format uint32, flags ...byte) []byte {
		s := StoreState{NextSeq: 1}
		body := s.encode()
		copy(body, magic)
		binary.LittleEndian.PutUint32(body[len(rootMagic):], format)
		copy(body[44:], flags)
		return seal(key, body)
	}
	unhex := func(s string) []byte {
		b, err := hex.DecodeString(s)
		require.NoError(t, err)
		return b
	}
	unreleased := " of a build from before the first release, must be 1, the one that this program reads: use the skep that wrote the store, or make the store anew"
	for _, tt := range []struct {
		name string
		row  []byte
		kind skep.Kind
		says string
	}{
		{"this one", root(rootMagic, FormatVersion), 0, ""},
		{"the next", root(rootMagic, FormatVersion+1), skep.Version, "catalog: other format: store format is 2, must be 1, the one that this program reads: use the skep that wrote"},
		{"zero", root(rootMagic, 0), skep.Version, "store format is 0, must be 1"},
		{"another magic", root("SKEP/dog", FormatVersion), skep.Damaged, "SKEP/cat"},
		{"the next, of which only magic and format are known", seal(key, append([]byte(rootMagic), 2, 0, 0, 0)), skep.Version, "store format is 2, must be 1"},
		{"a flag that nobody knows", root(rootMagic, FormatVersion, 8), skep.Damaged, "flags 0x8"},
		{"cut in the format", seal(key, append([]byte(rootMagic), 1, 0)), skep.Damaged, ""},
		{"empty", seal(key, nil), skep.Damaged, ""},
		{"unreleased 1", unhex("010100000006f8808328029abba70ea7a1598742742e7147dcdaf8776e5306f9a66400837100030001040401093fd08b"), skep.Version, "store format is 1" + unreleased},
		{"unreleased 5", unhex("010500000031c3b2f5994e4dc52125a9818a52648895b3e1dbc5fc013e7a8288ae6d59b316003c00040909012973af08"), skep.Version, "store format is 5" + unreleased},
		{"unreleased 6", unhex("010600000081bd7c0e5320e5a9d62f20966647ebca212fa6fb197424131af0796b2868a982013e3d04090901beb38f85a13442f17406"), skep.Version, "store format is 6" + unreleased},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fs := vfs.NewMem()
			c := open(t, fs)
			require.NoError(t, c.db.Set(key, tt.row, pebble.Sync))
			require.NoError(t, c.Close())
			o := Options{FS: fs, Logger: quiet()}
			for _, open := range []func() (*Catalog, error){
				func() (*Catalog, error) { return Open(testDir, o) },
				func() (*Catalog, error) { return Inspect(testDir, o) },
				func() (*Catalog, error) { return Open(testDir, o) },
			} {
				c, err := open()
				if tt.kind == 0 {
					require.NoError(t, err)
					require.NoError(t, c.Close())
					continue
				}
				require.ErrorIs(t, err, tt.kind)
				require.ErrorContains(t, err, tt.says)
			}
		})
	}
}

// Alone: goroutines of the whole process are counted.
func TestLockNamesItsHolder(t *testing.T) {
	noLeaks(t)
	dir := t.TempDir()
	c, err := Open(dir, Options{Logger: quiet()})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	_, err = Open(dir, Options{Logger: quiet()})
	assert.ErrorIs(t, err, skep.Locked)
	assert.ErrorContains(t, err, "this process")
	assert.ErrorContains(t, err, dir)
}

// Alone: goroutines of the whole process are counted.
func TestDamagedRowsAreToldApart(t *testing.T) {
	noLeaks(t)
	c := open(t, vfs.NewMem())
	g := GroupState{Group: 1, Generation: 2, Devices: []Member{{1, 2}}}
	body := g.encode()
	key := key32(rowGroup, 1)
	good := seal(key, body)
	set := func(value []byte) error {
		require.NoError(t, c.db.Set(key, value, pebble.NoSync))
		_, err := c.Groups(bg)
		return err
	}
	require.NoError(t, set(good))
	for i := range good {
		bad := slices.Clone(good)
		bad[i] ^= 1 << (i % 8)
		require.ErrorIs(t, set(bad), skep.Damaged, "byte %d", i)
		require.ErrorIs(t, set(good[:i]), skep.Damaged, "cut at %d", i)
	}
	require.ErrorIs(t, set(seal(key32(rowGroup, 2), body)), skep.Damaged, "under another key")
	for i := range len(body) { // sealed, but not what was encoded
		if err := set(seal(key, body[:i])); err != nil {
			require.ErrorIs(t, err, skep.Damaged)
		}
	}
	for _, v := range []byte{0, rowVersion + 1} {
		another := append([]byte{v}, body...)
		another = binary.LittleEndian.AppendUint32(another, checksum(key, another))
		require.ErrorIs(t, set(another), skep.Version)
	}
	require.NoError(t, set(good))
}

// A commit of the root row whose caller has left does not come after one that was begun later.
func TestRootRowsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	c := open(t, vfs.NewMem())
	for i := uint64(1); i < 2000; i += 2 {
		ctx, cancel := context.WithCancel(bg)
		b := c.NewBatch()
		b.PutStore(StoreState{NextSeq: i})
		go cancel()
		_ = c.Commit(ctx, b, true) // it may be through, or come later
		b = c.NewBatch()
		b.PutStore(StoreState{NextSeq: i + 1})
		require.NoError(t, c.Commit(bg, b, true))
		require.NoError(t, c.Commit(bg, c.NewBatch(), true))
		s, err := c.Store(bg)
		require.NoError(t, err)
		require.Equal(t, i+1, s.NextSeq)
	}
}
