package commit

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/intents"
	"github.com/skepkv/skep/store/internal/locks"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/internal/puts"
	"github.com/skepkv/skep/store/internal/sidecar"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/internal/watermark"
	"github.com/skepkv/skep/store/memory"
)

// Parts is what the rows are part of.
type Parts struct {
	Context  context.Context // ends with the store
	Closing  <-chan struct{} // the store's end has begun
	Catalog  *catalog.Catalog
	Names    *namespaces.Table
	Index    *index.Index
	Space    *space.Table
	Root     *watermark.Root
	Cache    *memory.Cache // nil without a DRAM tier
	Sidecars *sidecar.Rows
	Intents  *intents.List
	Puts     *puts.Table
	Events   *observe.Events
	Count    *observe.Counts
	Bad      *observe.Seldom // lines about wrong bytes
	Exact    bool            // the policy has an exact order, in which blocks go one by one
	Harden   time.Duration   // from a commit of rows of Cache blocks to the sync of the catalog
}

// Rows is the rows of a store's blocks, and the index of them. It is safe for any number of goroutines. Make it with
// New; nothing but the failure and the lock is there before Open.
type Rows struct {
	Parts
	log      *slog.Logger
	changes  locks.Mutex[locks.Changes] // of rows that exist: deletes, replacements, moves
	owed     owedRows
	loose    watermark.Unsynced // deletions of rows
	soft     watermark.Unsynced // commits of Cache blocks
	unsynced chan struct{}      // says that there are some of these; see KeepSynced
	failure  atomic.Pointer[error]
}

// New makes the rows of a store that is about to be opened.
func New(log *slog.Logger) *Rows { return &Rows{log: log, unsynced: make(chan struct{}, 1)} }

// Open gives the rows what they are part of. It precedes all but Fail, Failed and Changes.
func (r *Rows) Open(p Parts) { r.Parts = p }

// Changes is the lock of changes of rows that exist.
func (r *Rows) Changes() *locks.Mutex[locks.Changes] { return &r.changes }

// Await returns when the change of rows under way, if one is, has reached the index. The caller must not be making one.
func (r *Rows) Await() {
	r.changes.Lock()
	//lint:ignore SA2001 to wait is all
	r.changes.Unlock()
}

// Fail stops the store from accepting changes: the catalog can no longer keep them. Reads go on.
func (r *Rows) Fail(err error) {
	if r.failure.CompareAndSwap(nil, &err) {
		r.log.Error("store failed: it takes no more changes; restart it once the cause is mended", "error", err)
	}
}

// Failed is why the store takes no more changes; nil: it does.
func (r *Rows) Failed() error {
	if why := r.failure.Load(); why != nil {
		return *why
	}
	return nil
}

// Unsure follows a commit after which memory and rows must agree. Of one that ended in an error it may not be known
// whether it happened, or is still to happen: then nothing that memory says can be built upon, and the store takes no
// more changes. The next open goes by the rows. It gives err.
func (r *Rows) Unsure(err error) error {
	// A store that is closed is opened by its rows anyway.
	if err != nil && !catalog.Refused(err) && r.Context.Err() == nil {
		r.Fail(err)
	}
	return err
}

// commitRows commits b, and with it what is owed. On an error nothing of it happened, or the store has failed: see
// Unsure.
func (r *Rows) commitRows(b *catalog.Batch, commit func() error) error {
	rows := r.owed.into(b)
	err := r.Unsure(commit())
	if err == nil {
		r.owed.paid(rows)
	}
	return err
}

// commit is commitRows of what nobody's context ends: the index must follow the rows.
func (r *Rows) commit(b *catalog.Batch, sync bool) error {
	return r.commitRows(b, func() error { return r.Catalog.Commit(r.Context, b, sync) })
}
