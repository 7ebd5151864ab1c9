package store

import (
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/memory"
)

// hoard copies a part into the DRAM tier as dirty: it stays until the drives have it.
// It gives the copy as one piece where it is one, so that it can be written from, else
// nothing.
func (s *Store) hoard(id memory.ID, src []byte) (mem []byte, v memory.Version, ok bool) {
	if len(src) == 0 || len(src) > s.arena.MaxBlock() {
		return nil, 0, false
	}
	b, err := s.arena.TryAlloc(len(src), memory.BudgetCache)
	if err != nil {
		return nil, 0, false
	}
	mem = b.Bytes()
	copy(mem, src)
	v, err = s.cache.Put(memory.Item{ID: id, Bufs: []*memory.Buffer{b}, Length: int64(len(src)), Dirty: true, Replace: true})
	if err != nil {
		b.Release()
		return nil, 0, false
	}
	return mem, v, true
}

// forgetCached drops a block from the DRAM tier.
func (s *Store) forgetCached(fp index.Fingerprint) {
	if s.cache != nil {
		s.cache.Forget(memory.KeyOf(fp))
	}
}

// forgetter says what is to be forgotten of a block that is about to go: its payload
// in bytes, and its parts in the DRAM tier.
func (s *Store) forgetter(ns *namespaces.Namespace, fp index.Fingerprint, e index.Entry) (size int64, forget func()) {
	forget = func() { s.forgetCached(fp) }
	if n, ok := fixedSize(ns, e); ok {
		return n, forget
	}
	rec, err := s.record(fp, e)
	if err != nil {
		return layout.SlotBytes(uint64(e.Pages)), forget
	}
	return rec.Bytes(), forget
}
