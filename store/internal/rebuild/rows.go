package rebuild

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/skepkv/skep/store/internal/locks"

	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
)

// Rows of the new catalog: what the logs of a group hold is gathered, sorted by place and,
// together with that of the groups after it, written as tables. Nothing is written twice,
// and nothing goes through the catalog's log.

const (
	// rowMemory bounds the rows in memory: half of it for those of logs being read, half
	// for those that wait for the rows before them.
	rowMemory = 256 << 20
	// rowTableBytes is how much goes into one table.
	rowTableBytes = 8 << 20
	// rowChunk is the least memory rows are copied to at a time: twice as much each time,
	// up to rowChunk << (rowChunks - 1), so that few rows take little.
	rowChunk  = 16 << 10
	rowChunks = 7
	rowAtSize = 32
)

// rowAt is one row.
type rowAt struct {
	loc uint64 // packed: packed places sort as rows do
	rec []byte
}

// rowSet is rows and the memory they are in.
type rowSet struct {
	list   []rowAt
	chunks [][]byte
	bytes  int // memory: of the chunks and the list
}

// add copies a row.
func (s *rowSet) add(w *rowWriter, loc uint64, rec []byte) {
	last := len(s.chunks) - 1
	if last < 0 || len(rec) > cap(s.chunks[last])-len(s.chunks[last]) {
		c := w.chunk(min(len(s.chunks), rowChunks-1), len(rec))
		s.chunks = append(s.chunks, c)
		s.bytes += cap(c)
		last++
	}
	c := s.chunks[last]
	at := len(c)
	c = append(c, rec...)
	s.chunks[last] = c
	s.list = append(s.list, rowAt{loc, c[at:len(c):len(c)]})
	s.bytes += rowAtSize
}

// join takes over the rows of o.
func (s *rowSet) join(o *rowSet) {
	s.list = append(s.list, o.list...)
	s.chunks = append(s.chunks, o.chunks...)
	s.bytes += o.bytes
	o.list, o.chunks, o.bytes = o.list[:0], nil, 0
}

// sort sorts rows, of which long runs mostly are: what a log holds was placed in its order.
func (s *rowSet) sort() {
	byPlace := func(a, b rowAt) int { return cmp.Compare(a.loc, b.loc) }
	if !slices.IsSortedFunc(s.list, byPlace) {
		slices.SortFunc(s.list, byPlace)
	}
	s.list = slices.CompactFunc(s.list, func(a, b rowAt) bool { return a.loc == b.loc })
}

// joinSorted is join of two sets that are sorted. Two rows of one place are the same, from
// copies of a log.
func (s *rowSet) joinSorted(o *rowSet) {
	a, b := s.list, o.list
	merged := make([]rowAt, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		switch {
		case a[0].loc == b[0].loc:
			b = b[1:]
		case a[0].loc < b[0].loc:
			merged, a = append(merged, a[0]), a[1:]
		default:
			merged, b = append(merged, b[0]), b[1:]
		}
	}
	s.list, o.list = append(append(merged, a...), b...), o.list[:0]
	s.join(o)
}

// rowWriter makes tables of rows.
type rowWriter struct {
	c      *catalog.Catalog
	memory int                    // rowMemory
	free   [rowChunks]chan []byte // chunks to be used again, by size

	mu     locks.Mutex[locks.RebuildRows]
	moved  *sync.Cond // of next and held
	held   int        // bytes of rows in memory
	next   int        // the first group, in order, that is not done
	ready  rowSet     // of groups before it: too few for a table
	early  map[int]rowSet
	tables [][]catalog.Table // [0] do not overlap; nor do those of one spill
}

func (w *rowWriter) start(c *catalog.Catalog, memory int) {
	w.c, w.memory, w.early = c, memory, map[int]rowSet{}
	w.moved = sync.NewCond(&w.mu)
	for i := range w.free {
		w.free[i] = make(chan []byte, rowMemory/8/(rowChunk<<i))
	}
}

// chunk gives memory of a size, or of n bytes where that is more.
func (w *rowWriter) chunk(size, n int) []byte {
	if n > rowChunk<<size {
		return make([]byte, 0, n)
	}
	select {
	case c := <-w.free[size]:
		return c[:0]
	default:
		return make([]byte, 0, rowChunk<<size)
	}
}

// giveBack keeps the memory of rows for others.
func (w *rowWriter) giveBack(chunks [][]byte) {
	for i, c := range chunks {
		if size := min(i, rowChunks-1); cap(c) == rowChunk<<size {
			select {
			case w.free[size] <- c:
			default:
			}
		}
	}
}

// hold counts rows of a log that was read whole.
func (w *rowWriter) hold(rows *rowSet) {
	w.mu.Lock()
	w.held += rows.bytes
	w.mu.Unlock()
}

// await waits until the logs of the n-th group may be read; false when ctx has ended.
func (w *rowWriter) await(ctx context.Context, n int) bool {
	stop := context.AfterFunc(ctx, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.moved.Broadcast()
	})
	defer stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	for ctx.Err() == nil && (n >= w.next+len(w.early)+groupsAtOnce || w.held > w.memory/2) {
		w.moved.Wait()
	}
	return ctx.Err() == nil
}

// done takes the rows of the n-th group, sorted.
func (w *rowWriter) done(ctx context.Context, n int, rows *rowSet) error {
	w.mu.Lock()
	w.early[n] = *rows
	*rows = rowSet{}
	var full []rowSet
	for {
		s, ok := w.early[w.next]
		if !ok {
			break
		}
		delete(w.early, w.next)
		w.next++
		w.ready.join(&s)
		if w.ready.bytes >= rowTableBytes {
			full = append(full, w.ready)
			w.ready = rowSet{}
		}
	}
	w.moved.Broadcast()
	w.mu.Unlock()
	for i := range full {
		if err := w.write(ctx, 0, &full[i]); err != nil {
			return err
		}
	}
	return nil
}

// spill writes the rows of a log that has too many to wait for the others of its group.
func (w *rowWriter) spill(ctx context.Context, n int, rows *rowSet) error {
	rows.sort()
	w.hold(rows)
	err := w.write(ctx, n, rows)
	*rows = rowSet{list: rows.list[:0]}
	return err
}

// finish writes what is left, and has the catalog take in all tables.
func (w *rowWriter) finish(ctx context.Context) error {
	if err := w.write(ctx, 0, &w.ready); err != nil {
		return err
	}
	for _, t := range w.tables {
		if err := w.c.Ingest(ctx, t); err != nil {
			return err
		}
	}
	return nil
}

// write makes tables of sorted rows and gives their memory back.
func (w *rowWriter) write(ctx context.Context, level int, rows *rowSet) error {
	for from := 0; from < len(rows.list); {
		to, bytes := from, 0
		for to < len(rows.list) && bytes < rowTableBytes*3/2 {
			bytes += len(rows.list[to].rec)
			to++
		}
		part := rows.list[from:to]
		t, err := w.c.WriteTable(ctx, len(part), func(i int) (layout.Location, []byte) { return layout.Unpack(part[i].loc), part[i].rec })
		if err != nil {
			return err
		}
		w.mu.Lock()
		for len(w.tables) <= level {
			w.tables = append(w.tables, nil)
		}
		w.tables[level] = append(w.tables[level], t)
		w.mu.Unlock()
		from = to
	}
	w.mu.Lock()
	w.held -= rows.bytes
	w.moved.Broadcast()
	w.mu.Unlock()
	w.giveBack(rows.chunks)
	return nil
}

// rowBatch gathers changes of single rows.
type rowBatch struct {
	c     *catalog.Catalog
	b     *catalog.Batch
	bytes int
}

// rowBatchBytes is how much goes into one commit.
const rowBatchBytes = 1 << 20

func (b *rowBatch) remove(ctx context.Context, l layout.Location) error {
	if b.b == nil {
		b.b = b.c.NewBatch()
	}
	b.b.DeleteBlock(l)
	if b.bytes += 32; b.bytes < rowBatchBytes {
		return nil
	}
	return b.flush(ctx)
}

func (b *rowBatch) flush(ctx context.Context) error {
	if b.b == nil {
		return nil
	}
	batch := b.b
	b.b, b.bytes = nil, 0
	return b.c.Commit(ctx, batch, false)
}
