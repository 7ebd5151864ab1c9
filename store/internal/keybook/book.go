// Package keybook has the catalog know which encryption keys things of each namespace are encrypted with, so that an
// open with a wrong key, or with none once everything encrypted is evicted, is refused.
//
// # Seams
//
//	Book    reads the rows at an open, adds those of what is put, and removes those of what is gone
//
// # Invariants
//
//   - A key is noted in the commit of the first row that needs it, or before.
//   - What is noted goes with the namespace's instance, and only then.
package keybook

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/crypt"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/segment"
)

// Book is safe for any number of goroutines once Learn has returned. Make it with New.
type Book struct {
	*crypt.Keys
	catalog  *catalog.Catalog
	names    *namespaces.Table
	log      *slog.Logger
	readOnly bool            // the catalog is not written to
	ctx      context.Context // of the store
	timeout  time.Duration   // of what is written
}

// New makes the book of a store that is being opened. Open follows.
func New(ctx context.Context, keys *crypt.Keys, log *slog.Logger, readOnly bool, timeout time.Duration) *Book {
	return &Book{Keys: keys, log: log, readOnly: readOnly, ctx: ctx, timeout: timeout}
}

// Open gives it the catalog and the names, and takes from the catalog which keys are in use.
func (b *Book) Open(ctx context.Context, c *catalog.Catalog, names *namespaces.Table) error {
	b.catalog, b.names = c, names
	return b.load(ctx)
}

// tenantOf is whose an instance is; false: no namespace has it.
func (b *Book) tenantOf(instance uint32) (string, bool) {
	if ns := b.names.Of(instance); ns != nil {
		return ns.Info.Tenant, true
	}
	return "", false
}

func (b *Book) load(ctx context.Context) error {
	rows, err := b.catalog.Sealings(ctx)
	if err != nil {
		return err
	}
	gone := b.catalog.NewBatch()
	for _, r := range rows {
		if _, ok := b.tenantOf(r.Instance); ok {
			b.Keys.Note(crypt.Use{Instance: r.Instance, Key: r.Key})
		} else {
			gone.DeleteSealing(r) // a put that a purge overtook
		}
	}
	if gone.Len() == 0 || b.readOnly {
		return nil
	}
	return b.catalog.Commit(ctx, gone, false)
}

// Learn looks at the keys that the catalog and the blocks name. Error: Denied for those that are not theirs, unless it
// is to go on without.
func (b *Book) Learn(ctx context.Context, seen []crypt.Seen, without bool) error {
	fresh, err := b.Keys.Learn(seen, b.tenantOf, without || b.readOnly, b.log)
	if err != nil || b.readOnly {
		return err
	}
	return b.note(ctx, fresh)
}

// Replace is crypt's, and warns of keys that are taken away while blocks may need them. A later open with the new key
// alone is none with a wrong one.
func (b *Book) Replace(keys map[string][]crypt.Key) error {
	missed, err := b.Keys.Replace(keys, b.tenantOf)
	if err != nil {
		return err
	}
	told := map[string]bool{}
	for _, u := range missed {
		tenant, _ := b.tenantOf(u.Instance)
		if at := tenant + "/" + u.Key.String(); !told[at] {
			told[at] = true
			b.log.Warn("an encryption key is given no more that blocks may need: those that do are misses",
				"tenant", tenant, "key_id", u.Key.String(), "next", "give it again, below the new one, until "+
					"skep inspect keys --dir D lists it no more")
		}
	}
	if b.readOnly {
		return nil
	}
	ctx, cancel := context.WithTimeout(b.ctx, b.timeout)
	defer cancel()
	if err := b.note(ctx, b.Keys.Renewed(b.tenantOf)); err != nil { // which hinders nobody now
		b.log.Warn("new encryption keys are in use, and the catalog does not say so yet", "error", err)
	}
	return nil
}

func (b *Book) note(ctx context.Context, fresh []crypt.Use) error {
	if len(fresh) == 0 {
		return nil
	}
	batch := b.catalog.NewBatch()
	for _, u := range fresh {
		batch.PutSealing(catalog.Sealing{Instance: u.Instance, Key: u.Key})
	}
	if err := b.catalog.Commit(ctx, batch, true); err != nil {
		return err
	}
	b.Keys.Note(fresh...)
	return nil
}

// Add adds to a batch the key that a block is encrypted with, if the catalog does not have it. What Add has given is
// handed to Added once the batch is committed.
func (b *Book) Add(batch *catalog.Batch, rec *segment.Record, fresh []crypt.Use) []crypt.Use {
	if rec.Sealed == nil {
		return fresh
	}
	u := crypt.Use{Instance: rec.Instance, Key: rec.Sealed.Key}
	if slices.Contains(fresh, u) || b.Keys.Noted(u) {
		return fresh
	}
	batch.PutSealing(catalog.Sealing{Instance: u.Instance, Key: u.Key})
	return append(fresh, u)
}

// Added says that what Add has given is committed.
func (b *Book) Added(fresh []crypt.Use) { b.Keys.Note(fresh...) }

// Drop adds to a batch that a namespace's instance is gone. Dropped follows once that is committed.
func (b *Book) Drop(batch *catalog.Batch, instance uint32) {
	for _, id := range b.Keys.UsedBy(instance) {
		batch.DeleteSealing(catalog.Sealing{Instance: instance, Key: id})
	}
}

// Dropped says that what Drop was called for is committed.
func (b *Book) Dropped(instance uint32) { b.Keys.Forget(instance) }
