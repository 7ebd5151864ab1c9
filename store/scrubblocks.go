package store

import (
	"context"
	"sync"

	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// scrubRow is one block of a group.
type scrubRow struct {
	fp  index.Fingerprint
	loc layout.Location
	rec segment.Record
}

// A scrub reads several blocks at once, where one after the other would leave the drives
// idle between them: as many as scrubBytes of memory hold, and one while it gives way.
const (
	scrubReaders = 8
	scrubBytes   = 32 << 20
)

// readersFor is how many blocks of a group, the largest of so many pages, are read at once.
func readersFor(pages int) int {
	return min(scrubReaders, max(1, scrubBytes/(max(1, pages)*layout.PageSize)))
}

// blocks verifies those of a group's blocks that still are there, and says of each how it
// is, in no particular order, from the caller's goroutine.
func (sc *scrubber) blocks(ctx context.Context, g *space.Group, rows []scrubRow, found func(r *scrubRow, state blockState)) {
	type answer struct {
		row   *scrubRow
		state blockState
		read  int64
	}
	pages := 0
	for i := range rows {
		pages = max(pages, int(rows[i].rec.Pages))
	}
	readers := min(readersFor(pages), len(rows))
	next, answers := make(chan *scrubRow), make(chan answer, readers)
	var wg sync.WaitGroup
	for range readers {
		wg.Go(func() {
			v := verifier{s: sc.s}
			for r := range next {
				state := blockSound
				if !sc.o.logsOnly {
					state = v.record(ctx, g, r.fp, r.loc, &r.rec, !sc.o.DryRun)
				}
				answers <- answer{r, state, v.read}
				v.read = 0
			}
		})
	}
	away := 0
	take := func() {
		a := <-answers
		away--
		sc.v.read += a.read
		found(a.row, a.state)
		sc.pace(ctx)
	}
	for i := range rows {
		for away > 0 && (away == readers || sc.givesWay()) {
			take()
		}
		if ctx.Err() != nil {
			break
		}
		if r := &rows[i]; sc.stillThere(r) {
			sc.rep.Blocks++
			away++
			next <- r
		}
	}
	close(next)
	for away > 0 {
		take()
	}
	wg.Wait()
}

// stillThere says whether a block was not moved or dropped since its row was read.
func (sc *scrubber) stillThere(r *scrubRow) bool {
	e, ok := sc.s.index.Resolve(r.fp)
	return ok && e.Location == r.loc.Pack() && !sc.s.names.Dead(r.rec.Instance, namespaces.Tag(r.rec.SaltTag))
}

// givesWay says whether restores read while the scrub was given no rate.
func (sc *scrubber) givesWay() bool { return sc.o.Rate == 0 && traffic{sc.s}.Restoring() }
