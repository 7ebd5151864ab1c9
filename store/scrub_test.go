package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// harmDrive changes bytes of a device behind the store's back.
func harmDrive(t testing.TB, d *space.Drive, off int64, n int) {
	t.Helper()
	page := device.AlignedBuffer(layout.PageSize)
	at := off &^ (layout.PageSize - 1)
	require.NoError(t, device.ReadAt(testContext(t), d.Dev, page, at))
	for i := range n {
		page[off-at+int64(i)] ^= 0xa5
	}
	require.NoError(t, device.WriteAt(testContext(t), d.Dev, page, at))
}

// recordsOf are the rows of all groups.
func recordsOf(t testing.TB, s *Store) map[layout.Location]segment.Record {
	t.Helper()
	out := map[layout.Location]segment.Record{}
	require.NoError(t, s.catalog.ScanBlocks(testContext(t), 1, func(_ int, l layout.Location, row []byte) error {
		var r segment.Record
		err := segment.DecodeRecord(row, &r)
		out[l] = r
		return err
	}))
	return out
}

// damageCopy makes the first granule of one copy of a block wrong.
func damageCopy(t testing.TB, s *Store, rec *segment.Record, copy int) {
	p := rec.Copies[copy]
	g := s.space.Find(p.Group)
	e := layout.Extents(nil, layout.Location{Group: p.Group, Page: p.Page, Device: p.Device, Sub: p.Sub}, int64(rec.Pages)*layout.PageSize, len(g.Drives))[0]
	d := g.Drives[e.Device]
	harmDrive(t, d, d.SegmentOffset(g.Segments[e.Device])+int64(e.Page)*layout.PageSize+100, 3)
}

func openCopies(t testing.TB, copies int) (*Store, skep.Scope, []skep.Key) {
	o := small(tempRoot(t, "store"))
	o.DeviceCount, o.CapacityBytes, o.CacheBytes = 3, 6<<20, -1
	unjudged(&o)
	s, err := Open(testContext(t), o)
	require.NoError(t, err)
	sc := openSpace(t, s, "chain", skep.Durable, copies, true)
	keys := chainKeys(1, 20)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 9000))
	return s, sc, keys
}

func TestScrubRepairsFromTheOtherCopy(t *testing.T) {
	t.Parallel()
	s, sc, keys := openCopies(t, 2)
	defer func() { require.NoError(t, s.Close()) }()
	ctx := testContext(t)
	rep, err := s.Scrub(ctx, ScrubOptions{})
	require.NoError(t, err)
	require.True(t, rep.Sound(), "%+v", rep)
	require.EqualValues(t, len(keys), rep.Blocks)
	require.EqualValues(t, 2*len(keys)*3*layout.PageSize, rep.Bytes, "both copies of three pages each")

	damaged := 0
	for _, rec := range recordsOf(t, s) {
		if damaged++; damaged <= 5 {
			damageCopy(t, s, &rec, damaged%2)
		}
	}
	dry, err := s.Scrub(ctx, ScrubOptions{DryRun: true})
	require.NoError(t, err)
	require.EqualValues(t, 5, dry.BadCopies)
	require.Zero(t, dry.Repaired)
	rep, err = s.Scrub(ctx, ScrubOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 5, rep.Repaired)
	require.Zero(t, rep.Lost)
	require.Len(t, rep.Faults, 5)
	rep, err = s.Scrub(ctx, ScrubOptions{})
	require.NoError(t, err)
	require.True(t, rep.Sound(), "%+v", rep)
	requireChain(t, s, sc, keys, 9000)
}

func TestScrubForgetsWhatHasNoRightCopy(t *testing.T) {
	t.Parallel()
	s, sc, keys := openCopies(t, 1)
	defer func() { require.NoError(t, s.Close()) }()
	ctx := testContext(t)
	events, err := s.Events(ctx, skep.Cursor{}, false)
	require.NoError(t, err)
	defer events.Close()
	for _, rec := range recordsOf(t, s) {
		if rec.Key == keys[7] {
			damageCopy(t, s, &rec, 0)
		}
	}
	rep, err := s.Scrub(ctx, ScrubOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 1, rep.Lost)
	found, err := s.Lookup(ctx, &skep.LookupRequest{Scope: sc, Keys: keys})
	require.NoError(t, err)
	require.Equal(t, 7, found.Blocks, "the chain ends before the block that is lost")
	into := make([]skep.Event, 64)
	seen := false
	for !seen {
		n, err := events.Next(ctx, into)
		require.NoError(t, err)
		for _, e := range into[:n] {
			seen = seen || e.Kind == skep.EventDamaged && e.Key == keys[7]
		}
	}
	putRun(t, s, sc, keys, 9000)
	requireChain(t, s, sc, keys, 9000)
}

// A block whose one copy is wrong while the drive of the other is away is not lost: the drive may come back.
func TestScrubForgetsNothingThatADriveMayHave(t *testing.T) {
	t.Parallel()
	s, sc, keys := openCopies(t, 2)
	ctx := testContext(t)
	for _, rec := range recordsOf(t, s) {
		if rec.Key == keys[7] {
			damageCopy(t, s, &rec, 0)
			p := rec.Copies[1]
			g := s.space.Find(p.Group)
			e := layout.Extents(nil, p, int64(rec.Pages)*layout.PageSize, len(g.Drives))[0]
			s.space.Exclude(g.Drives[e.Device], health.Dead, segio.ErrNoDrive)
		}
	}
	rep, err := s.Scrub(ctx, ScrubOptions{})
	require.NoError(t, err)
	require.Zero(t, rep.Lost)
	o := s.options
	require.NoError(t, s.Close())
	s, err = Open(ctx, o)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	requireChain(t, s, sc, keys, 9000)
}

// A Cache block of which nothing can be read makes room for who has its bytes, although a drive that may have them is
// away: what is found and not read would be missed for as long.
func TestACacheBlockThatCannotBeReadMakesRoom(t *testing.T) {
	t.Parallel()
	s, _, keys := openCopies(t, 2)
	defer func() { require.NoError(t, s.Close()) }()
	ctx := testContext(t)
	sc := openSpace(t, s, "cached", skep.Cache, 2, true)
	keys = keys[:4]
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 9000))
	last := keys[len(keys)-1]
	for _, rec := range recordsOf(t, s) {
		if rec.Key == last && rec.Flags&segment.RecordDurable == 0 {
			damageCopy(t, s, &rec, 0)
			p := rec.Copies[1]
			g := s.space.Find(p.Group)
			e := layout.Extents(nil, p, int64(rec.Pages)*layout.PageSize, len(g.Drives))[0]
			s.space.Exclude(g.Drives[e.Device], health.Dead, segio.ErrNoDrive)
		}
	}
	list, err := fetch(ctx, s, skep.Chain{Scope: sc, Keys: keys})
	require.NoError(t, err)
	require.Error(t, list[len(keys)-1].err)
	eventually(t, "it can be put again", func() bool {
		return putRun(t, s, sc, keys, 9000)[len(keys)-1].Outcome == skep.Committed
	})
	requireChain(t, s, sc, keys, 9000)
}

// One wrong copy of two is read around, and behind the reader's back made right.
func TestReadingADamagedCopyRepairsIt(t *testing.T) {
	t.Parallel()
	s, sc, keys := openCopies(t, 2)
	defer func() { require.NoError(t, s.Close()) }()
	before := recordsOf(t, s)
	for _, rec := range before {
		damageCopy(t, s, &rec, 0)
		damageCopy(t, s, &rec, 0) // the same bytes again: right
		if rec.Key == keys[3] {
			damageCopy(t, s, &rec, 0)
		}
	}
	eventually(t, "the block is written again", func() bool {
		requireChain(t, s, sc, keys, 9000)
		return s.count.Repaired.Load() == 1
	})
	rep, err := s.Scrub(testContext(t), ScrubOptions{DryRun: true})
	require.NoError(t, err)
	require.True(t, rep.Sound(), "%+v", rep)
	damaged := s.count.Damaged.Load()
	requireChain(t, s, sc, keys, 9000)
	require.Equal(t, damaged, s.count.Damaged.Load(), "it is not found again at every read")
}

func TestScrubMendsHeadersSuperblocksAndLogs(t *testing.T) {
	t.Parallel()
	s, sc, keys := openCopies(t, 1)
	ctx := testContext(t)
	require.NoError(t, s.Close())
	s, err := Open(ctx, s.options)
	require.NoError(t, err)
	var g *space.Group
	for _, rec := range recordsOf(t, s) {
		g = s.space.Find(rec.Copies[0].Group)
	}
	harmDrive(t, s.members.Opened[0], 200, 1)
	harmDrive(t, s.members.Opened[1], layout.PageSize+30, 2)
	harmDrive(t, g.Drives[2], g.Drives[2].SegmentOffset(g.Segments[2])+60, 4)
	for i, d := range g.Drives { // the first page of each log
		harmDrive(t, d, d.SegmentOffset(g.Segments[i]+1)-layout.PageSize+200, 8)
	}
	rep, err := s.Scrub(ctx, ScrubOptions{DryRun: true})
	require.NoError(t, err)
	require.EqualValues(t, 3, rep.Headers)
	require.Positive(t, rep.LogsMended)
	first := rep.LogsMended
	rep, err = s.Scrub(ctx, ScrubOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 3, rep.Headers)
	require.Equal(t, first, rep.LogsMended)
	rep, err = s.Scrub(ctx, ScrubOptions{})
	require.NoError(t, err)
	require.True(t, rep.Sound(), "%+v", rep)
	require.NoError(t, s.Close())
	_, err = Rebuild(ctx, s.options, false, nil)
	require.NoError(t, err)
	s, err = Open(ctx, s.options)
	require.NoError(t, err)
	requireChain(t, s, sc, keys, 9000)
	require.NoError(t, s.Close())
}

// A block with two copies has its record in two logs. Where one is damaged, verify names it,
// a scrub writes it again, and then the damaged page is no fault any more: nothing is missing.
func TestScrubMendsRecordsThatStandOnOneDriveOnly(t *testing.T) {
	t.Parallel()
	s, sc, keys := openCopies(t, 2)
	ctx := testContext(t)
	require.NoError(t, s.Close())
	s, err := Open(ctx, s.options)
	require.NoError(t, err)
	var g *space.Group
	for _, rec := range recordsOf(t, s) {
		g = s.space.Find(rec.Copies[0].Group)
	}
	harmed := -1
	for i, d := range g.Drives { // a log in which records are
		end, err := segio.ScanLog(ctx, s.space.LogOf(g, i), segio.LogBuffer(), hangs, func(*segment.Append) error { return nil })
		require.NoError(t, err)
		if end.Appends > 0 && harmed < 0 {
			harmed = i
			harmDrive(t, d, d.SegmentOffset(g.Segments[i]+1)-layout.PageSize+200, 8)
		}
	}
	require.NoError(t, s.Close())
	o := s.options
	o.OpenDevice = nil // Verify's own opens them twice

	rep, err := Verify(ctx, o, VerifyOptions{})
	require.NoError(t, err)
	require.False(t, rep.Sound)
	require.Positive(t, rep.TornLogs)
	for _, f := range rep.Faults {
		require.Equal(t, "log", f.What)
		require.Contains(t, f.Problem, "on one drive only")
	}
	s, err = Open(ctx, o)
	require.NoError(t, err)
	mended, err := s.Scrub(ctx, ScrubOptions{})
	require.NoError(t, err)
	require.EqualValues(t, len(rep.Faults), mended.LogsMended)
	mended, err = s.Scrub(ctx, ScrubOptions{})
	require.NoError(t, err)
	require.True(t, mended.Sound(), "%+v", mended)
	requireChain(t, s, sc, keys, 9000)
	require.NoError(t, s.Close())
	rep, err = Verify(ctx, o, VerifyOptions{Deep: true})
	require.NoError(t, err)
	require.Empty(t, rep.Faults)
}

// A page of a log that is damaged, or was never finished, through which nothing is missing is
// told and is no fault: a crash or a failed write leaves such pages.
func TestTornLogWithNothingMissingIsSound(t *testing.T) {
	t.Parallel()
	s, _, _ := openCopies(t, 2)
	ctx := testContext(t)
	require.NoError(t, s.Close())
	o := s.options
	o.OpenDevice = nil // Verify's own opens them twice
	s, err := Open(ctx, o)
	require.NoError(t, err)
	harmed := 0
	for _, g := range s.space.Groups() {
		for i, d := range g.Drives { // the mark of an orderly end has a page of its own
			mark := false
			end, err := segio.ScanLog(ctx, s.space.LogOf(g, i), segio.LogBuffer(), hangs, func(a *segment.Append) error {
				mark = true
				for e := range a.Entries() {
					mark = mark && e.Kind == segment.KindMark
				}
				return nil
			})
			require.NoError(t, err)
			if mark {
				harmDrive(t, d, d.SegmentOffset(g.Segments[i]+1)-int64(end.Pages)*layout.PageSize+200, 8)
				harmed++
			}
		}
	}
	require.Positive(t, harmed)
	require.NoError(t, s.Close())
	rep, err := Verify(ctx, o, VerifyOptions{})
	require.NoError(t, err)
	require.True(t, rep.Sound, "%+v", rep.Faults)
	require.Positive(t, rep.TornLogs)
}

// A scrub has several blocks under way, or drives would be idle between them; one at a time
// only when its blocks are so large that more would take too much memory.
func TestScrubReadsSeveralBlocksAtOnce(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, _ := openRig(t, func(o *Options) { unjudged(o); o.DeviceCount = 1 })
	defer func() { require.NoError(t, s.Close()) }()
	sc := openSpace(t, s, "n", skep.Durable, 1, true)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(1, 16), 4<<10))
	begin := s.members.Opened[0].SegmentOffset(openedBy(s, space.User).Segments[0])
	r.faults[0].MustInject(device.Rule{Action: device.Hold, Kinds: device.Reads, From: begin + layout.PageSize,
		Match: func(op *device.Op) bool { return len(op.Bufs) == 1 && len(op.Bufs[0]) == layout.PageSize }}) // no header, and no log
	var rep ScrubReport
	var err error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		rep, err = s.Scrub(ctx, ScrubOptions{Rate: 1 << 40})
	}()
	require.NoError(t, r.faults[0].WaitHeld(ctx, 8))
	r.faults[0].Release()
	<-ended
	require.NoError(t, err)
	require.Empty(t, rep.Faults)
	require.EqualValues(t, 16, rep.Blocks)
	require.EqualValues(t, 16*layout.PageSize, rep.Bytes)
}
