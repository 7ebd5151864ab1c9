package intents

import (
	"context"
	"slices"

	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/locks"
	"github.com/skepkv/skep/store/internal/watermark"
	"github.com/skepkv/skep/store/segment"
)

// List is the intents that are not carried out. It is safe for any number of goroutines. Make it with New.
type List struct {
	root *watermark.Root
	mu   locks.Mutex[locks.Intents]
	left []catalog.Intent
	busy int // those who try some of them again now
}

// New has none. Those that are put are numbered by root.
func New(root *watermark.Root) *List { return &List{root: root} }

// Load finds what the store before this one did not get to.
func (l *List) Load(ctx context.Context, c *catalog.Catalog) error {
	list, err := c.Intents(ctx)
	if err == nil {
		l.Add(list...)
	}
	for _, i := range list {
		l.root.Pass(i.Number)
	}
	return err
}

// Put adds entries to a commit, as an intent, to be carried out when b is committed.
func (l *List) Put(b *catalog.Batch, w *segment.LogWriter) catalog.Intent {
	i := catalog.Intent{Number: l.root.Next(), Entries: slices.Clone(w.Bytes())}
	b.PutIntent(i.Number, i.Entries)
	return i
}

// PutTombstones is Put of tombstones, for logs in segments of so many bytes.
func (l *List) PutTombstones(b *catalog.Batch, segmentBytes int64, list []segment.Tombstone) (out []catalog.Intent,
	err error) {
	parts, err := Tombstones(segmentBytes, list)
	for _, w := range parts {
		out = append(out, l.Put(b, w))
	}
	return out, err
}

// Tombstones are log entries for list, as many to an append as fit in segments of so many bytes: a page in small
// segments, a few in others.
func Tombstones(segmentBytes int64, list []segment.Tombstone) ([]*segment.LogWriter, error) {
	most := 200
	if segmentBytes < 64*layout.PageSize {
		most = 50
	}
	var out []*segment.LogWriter
	for part := range slices.Chunk(list, most) {
		w := &segment.LogWriter{}
		for i := range part {
			if err := w.Tombstone(&part[i]); err != nil {
				return nil, err
			}
		}
		out = append(out, w)
	}
	return out, nil
}

// Add adds some that could not be carried out.
func (l *List) Add(list ...catalog.Intent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left = append(l.left, list...)
}

// Take takes all, for who tries them again. Ended with Tried.
func (l *List) Take() []catalog.Intent {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.left
	l.left = nil
	l.busy++
	return out
}

// Begin notes that somebody has some that are not in the list: to be added later. Ended with Tried.
func (l *List) Begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy++
}

// Tried follows Take or Begin, when those that could not be carried out are back. It says whether there are none.
func (l *List) Tried() (none bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy--
	return len(l.left) == 0
}

// Underway says that somebody tries some again now.
func (l *List) Underway() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.busy > 0
}

// None says that the devices know all that they are to know.
func (l *List) None() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.left) == 0 && l.busy == 0
}
