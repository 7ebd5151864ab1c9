// Package keybook has the catalog and the devices' logs know which encryption keys things of each namespace are
// encrypted with, so that an open with a wrong key, or with none once everything encrypted is evicted, is refused, also
// where the catalog was made anew from the devices.
//
// # Seams
//
//	Book    reads the rows at an open, tells who puts what to encrypt with, and removes the rows of what is gone
//
// # Invariants
//
//   - Before anything of an instance is encrypted with a key, the devices' logs say so, flushed, and then the catalog,
//     synced. The logs come first: what they say too much makes an open ask for a key, and what they lack would have
//     a tenant's bytes written as they are put.
//   - What is noted goes with the namespace's instance, and only then. Log entries of an instance that is gone mean
//     nothing.
package keybook

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/crypt"
	"github.com/skepkv/skep/store/internal/limits"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/segment"
)

// Config is what a book goes by.
type Config struct {
	Context  context.Context // ends with the store
	Closing  chan struct{}   // closed when the store begins to close
	Keys     *crypt.Keys
	Log      *slog.Logger
	ReadOnly bool          // nothing is written
	Timeout  time.Duration // of what is written when keys are replaced
	// Say writes entries to the devices' logs, and returns when they are flushed. It waits for room.
	Say func(ctx context.Context, entries []byte) error
}

// Book is safe for any number of goroutines once Learn has returned. Make it with New.
type Book struct {
	*crypt.Keys
	Config  Config
	catalog *catalog.Catalog
	names   *namespaces.Table
	turn    limits.Turn // of who tells the devices; before space.Opening
	said    sync.Map    // crypt.Use: the devices know it
	owed    []crypt.Use // noted in the catalog, and not said by the devices; until Settle
}

// New makes the book of a store that is being opened. Open follows.
func New(c Config) *Book { return &Book{Keys: c.Keys, Config: c, turn: limits.NewTurn()} }

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
			u := crypt.Use{Instance: r.Instance, Key: r.Key}
			if b.Keys.Note(u); r.Said {
				b.said.Store(u, nil)
			} else {
				b.owed = append(b.owed, u)
			}
		} else {
			gone.DeleteSealing(r) // a put that a purge overtook
		}
	}
	if gone.Len() == 0 || b.Config.ReadOnly {
		return nil
	}
	return b.catalog.Commit(ctx, gone, false)
}

// Learn looks at the keys that the catalog and the blocks name. Error: Denied for those that are not theirs, unless it
// is to go on without.
func (b *Book) Learn(ctx context.Context, seen []crypt.Seen, without bool) error {
	fresh, err := b.Keys.Learn(seen, b.tenantOf, without || b.Config.ReadOnly, b.Config.Log)
	if err != nil || b.Config.ReadOnly {
		return err
	}
	b.owed = append(b.owed, fresh...)
	return b.note(ctx, false, fresh...)
}

// Settle has the devices say what only the catalog says: of stores from before they did, and after a rebuild that knew
// keys by blocks alone. Where that fails a put says it of what it encrypts, and the next open the rest.
func (b *Book) Settle(ctx context.Context) {
	list := b.owed
	b.owed = nil
	if len(list) == 0 || b.Config.ReadOnly {
		return
	}
	if err := b.say(ctx, "open store", list...); err != nil {
		b.Config.Log.Warn("the drives do not say yet which encryption keys are in use: without its catalog the store "+
			"would know it by blocks alone", "error", err)
	}
}

// Sealer is what blocks of a namespace are encrypted with from now on. Nil: they are not. The first time, the devices
// and the catalog are told before anything is. Errors: Denied for a tenant that has no key, and blocks that are
// encrypted; why the devices or the catalog cannot be told.
func (b *Book) Sealer(ctx context.Context, op string, ns *namespaces.Namespace) (*crypt.Secret, error) {
	s, err := b.Keys.Sealer(op, ns.Info.Tenant)
	if s == nil || err != nil {
		return nil, err
	}
	u := crypt.Use{Instance: ns.Instance, Key: s.ID()}
	if _, ok := b.said.Load(u); ok {
		return s, nil
	}
	return s, b.say(ctx, op, u)
}

// say has the devices' logs and the catalog say that keys are in use.
func (b *Book) say(ctx context.Context, op string, list ...crypt.Use) error {
	const what = "the drives being told which encryption key is in use"
	if err := b.turn.Take(ctx, b.Config.Timeout, b.Config.Closing, op, what); err != nil {
		return err
	}
	defer b.turn.Give()
	for part := range slices.Chunk(list, mostSaid) {
		var w segment.LogWriter // with nothing else in it
		var fresh []crypt.Use
		for _, u := range part {
			if _, ok := b.said.Load(u); ok {
				continue
			}
			if err := w.Sealing(&segment.Sealing{Instance: u.Instance, Key: u.Key}); err != nil {
				return err
			}
			fresh = append(fresh, u)
		}
		if len(fresh) == 0 {
			continue
		}
		if err := b.Config.Say(ctx, w.Bytes()); err != nil {
			return err
		}
		if err := b.note(ctx, true, fresh...); err != nil {
			return err
		}
	}
	return nil
}

// mostSaid is how many keys are said in one append: they fit in a page.
const mostSaid = 128

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
			b.Config.Log.Warn("an encryption key is given no more that blocks may need: those that do are misses",
				"tenant", tenant, "key_id", u.Key.String(), "next", "give it again, below the new one, until "+
					"skep inspect keys --dir D lists it no more")
		}
	}
	if b.Config.ReadOnly {
		return nil
	}
	ctx, cancel := context.WithTimeout(b.Config.Context, b.Config.Timeout)
	defer cancel()
	if err := b.say(ctx, "encryption keys", b.Keys.Renewed(b.tenantOf)...); err != nil { // hinders nobody now
		b.Config.Log.Warn("new encryption keys are in use, and neither the drives nor the catalog say so yet", "error", err)
	}
	return nil
}

// note has the catalog say which keys are in use, and whether the devices say it.
func (b *Book) note(ctx context.Context, said bool, fresh ...crypt.Use) error {
	if len(fresh) == 0 {
		return nil
	}
	batch := b.catalog.NewBatch()
	for _, u := range fresh {
		batch.PutSealing(catalog.Sealing{Instance: u.Instance, Key: u.Key, Said: said})
	}
	if err := b.catalog.Commit(ctx, batch, true); err != nil {
		return err
	}
	b.Keys.Note(fresh...)
	for _, u := range fresh {
		if said {
			b.said.Store(u, nil)
		}
	}
	return nil
}

// Drop adds to a batch that a namespace's instance is gone. Dropped follows once that is committed.
func (b *Book) Drop(batch *catalog.Batch, instance uint32) {
	for _, id := range b.Keys.UsedBy(instance) {
		batch.DeleteSealing(catalog.Sealing{Instance: instance, Key: id})
	}
}

// Dropped says that what Drop was called for is committed.
func (b *Book) Dropped(instance uint32) {
	for _, id := range b.Keys.UsedBy(instance) {
		b.said.Delete(crypt.Use{Instance: instance, Key: id})
	}
	b.Keys.Forget(instance)
}
