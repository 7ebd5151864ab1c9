package lookup

import (
	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/namespaces"
)

// extentOf is how many tokens a block lacks, which a partial tail does, and the size of its
// payload: its record says, where the namespace does not fix it or the block has more parts
// than one. False: the block is gone.
func (l *Finder) extentOf(ns *namespaces.Namespace, fp index.Fingerprint, e index.Entry) (missing int, bytes int64,
	ok bool) {
	if n, fixed := fixedSize(ns, e); fixed && !e.Partial {
		return 0, n, true
	}
	rec, err := l.Rows.RecordNow(l.Rows.Context, fp, e)
	switch {
	case err == commit.ErrGone:
		return 0, 0, false
	case err != nil:
		return 0, layout.SlotBytes(uint64(e.Pages)), true // its row cannot be read: the log may have it
	case e.Partial && rec.ValidTokens > 0:
		missing = ns.Info.Shape.BlockTokens - int(rec.ValidTokens)
	}
	return missing, rec.Bytes(), true
}

// PayloadOf is extentOf's size; that of what is gone is what it took.
func (l *Finder) PayloadOf(ns *namespaces.Namespace, fp index.Fingerprint, e index.Entry) int64 {
	if _, n, ok := l.extentOf(ns, fp, e); ok {
		return n
	}
	return layout.SlotBytes(uint64(e.Pages))
}

// fixedSize is a block's payload where that follows from the namespace: as many bytes as part kv has.
func fixedSize(ns *namespaces.Namespace, e index.Entry) (int64, bool) {
	return ns.PartSize(skep.PartKV), !e.Odd
}
