package locate

import (
	"context"
	"iter"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/restore"
)

// A finder is the store as its restores see it: besides where blocks lie, who is told of what became of them.
var _ restore.Source = (*Finder)(nil)

// Enter implements restore.Source.
func (l *Finder) Enter(ctx context.Context) error { return l.Gate.Enter(ctx) }

// Leave implements restore.Source.
func (l *Finder) Leave() { l.Gate.Leave() }

// Hold implements restore.Source.
func (l *Finder) Hold(tenant uint16, bytes int64) (int64, error) {
	return l.Calls.Enter("restore", tenant, bytes)
}

// LetGo implements restore.Source.
func (l *Finder) LetGo(tenant uint16, bytes int64) { l.Calls.Leave(tenant, bytes) }

// Leased implements restore.Source.
func (l *Finder) Leased(a *restore.Asked) int { return l.Lookups.Covered(a) }

// PayloadOf implements restore.Source.
func (l *Finder) PayloadOf(ns *namespaces.Namespace, fp index.Fingerprint, e index.Entry) int64 {
	return l.Lookups.PayloadOf(ns, fp, e)
}

// Drives implements restore.Source.
func (l *Finder) Drives() iter.Seq[restore.Drive] {
	return func(yield func(restore.Drive) bool) {
		for _, d := range l.Members.All() {
			if !yield(d) {
				return
			}
		}
	}
}

// Used implements restore.Source.
func (l *Finder) Used(fp index.Fingerprint, t skep.Tier) {
	l.Index.Touch(fp)
	l.Lookups.Programs.Restored(fp)
	if t == skep.TierDRAM {
		l.Reused(fp)
	}
}
