package scrub

import (
	"context"
	"sync"

	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// Block is a block where the catalog says that it lies.
type Block struct {
	FP     index.Fingerprint
	At     layout.Location
	Record segment.Record
}

// A scrub reads several blocks at once, where one after the other would leave the drives
// idle between them: as many as mostBytes of memory hold, and one while it gives way.
const (
	mostReaders = 8
	mostBytes   = 32 << 20
)

// readersFor is how many blocks of a group, the largest of so many pages, are read at once.
func readersFor(pages int) int {
	return min(mostReaders, max(1, mostBytes/(max(1, pages)*layout.PageSize)))
}

// blocks verifies those of a group's blocks that still are there, and says of each how it
// is, in no particular order, from the caller's goroutine.
func (sc *pass) blocks(ctx context.Context, g *space.Group, rows []Block, found func(r *Block, state State)) {
	type answer struct {
		row   *Block
		state State
		read  int64
	}
	pages := 0
	for i := range rows {
		pages = max(pages, int(rows[i].Record.Pages))
	}
	readers := min(readersFor(pages), len(rows))
	next, answers := make(chan *Block), make(chan answer, readers)
	var wg sync.WaitGroup
	for range readers {
		wg.Go(func() {
			v := sc.s.Verifier()
			for r := range next {
				state := Sound
				if !sc.o.LogsOnly {
					state = v.Block(ctx, g, r, !sc.o.DryRun)
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
		if a.state != Ended {
			sc.rep.Blocks++
		}
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
func (sc *pass) stillThere(r *Block) bool {
	return sc.s.lies(r.FP, r.At) && !sc.s.Names.Dead(r.Record.Instance, namespaces.Tag(r.Record.SaltTag))
}

// givesWay says whether restores read while the scrub was given no rate.
func (sc *pass) givesWay() bool { return sc.o.Rate == 0 && sc.s.Space.Restoring() }
