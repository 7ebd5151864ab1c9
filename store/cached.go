package store

import (
	"github.com/zeebo/xxh3"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/memory"
	"github.com/skepkv/skep/store/segment"
)

// partID is a part's number in the DRAM tier: by name, since who looks there has not
// read the block's record. Two parts of one block whose numbers agree are not cached
// (clash).
func partID(name string) uint16 { return uint16(xxh3.HashString(name)) }

func cacheID(fp index.Fingerprint, part string) memory.ID {
	return memory.ID{Key: cacheKey(fp), Part: partID(part)}
}

func cacheKey(fp index.Fingerprint) (k memory.Key) {
	copy(k[:], fp[:])
	return k
}

// clash says that two parts of a block would be taken for each other in the DRAM tier.
func clash(parts []segment.RecordPart) bool {
	for i := range parts {
		for j := range i {
			if partID(parts[i].Name) == partID(parts[j].Name) {
				return true
			}
		}
	}
	return false
}

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

// admit offers a part that was just read to the DRAM tier: the buffers the drive
// filled become the cache's, without a copy, and the reader shares them.
func (s *Store) admit(fp index.Fingerprint, loc uint64, part string, size int64, bufs []*memory.Buffer) {
	if s.cache == nil {
		return
	}
	for i, b := range bufs {
		if b.Retain() != nil {
			releaseAll(bufs[:i])
			return
		}
	}
	id := cacheID(fp, part)
	v, err := s.cache.Put(memory.Item{ID: id, Bufs: bufs, Length: size})
	if err != nil {
		releaseAll(bufs)
		return
	}
	// The block may have been deleted or replaced since it was found. Whoever does that
	// changes the index first and then forgets what is cached.
	if e, ok := s.index.Resolve(fp); !ok || e.Location != loc {
		s.cache.Discard(id, v)
	}
}

func releaseAll(bufs []*memory.Buffer) {
	for _, b := range bufs {
		b.Release()
	}
}

// cachedPart gives a part out of the DRAM tier, pinned, or nil.
func (s *Store) cachedPart(fp index.Fingerprint, part string) *memory.Handle {
	if s.cache == nil {
		return nil
	}
	h, ok := s.cache.Get(cacheID(fp, part))
	if !ok {
		return nil
	}
	return h
}

// describeCached completes f from the DRAM tier. False: the part there is not of the
// size the chain can take.
func (s *Store) describeCached(c *chain, f *found, h *memory.Handle) bool {
	f.size = h.Len()
	if want := c.Size; want >= 0 && want != f.size {
		return false
	}
	if err := c.Fits(f.size); err != nil {
		f.err = err
		h.Release()
		return true
	}
	f.memory = h
	return true
}

// forgetCached drops a block from the DRAM tier: the parts its record names, or, when
// nobody has read that, any.
func (s *Store) forgetCached(fp index.Fingerprint, rec *segment.Record) {
	if s.cache == nil {
		return
	}
	if rec == nil {
		key := cacheKey(fp)
		s.cache.Drop(func(id memory.ID) bool { return id.Key == key })
		return
	}
	for i := range rec.Parts {
		s.cache.Remove(cacheID(fp, rec.Parts[i].Name))
	}
}

// forgetter says what is to be forgotten of a block that is about to go: its payload
// in bytes, and its parts in the DRAM tier.
func (s *Store) forgetter(ns *namespaces.Namespace, fp index.Fingerprint, e index.Entry) (size int64, forget func()) {
	if n, ok := fixedSize(ns, e); ok {
		return n, func() {
			if s.cache != nil {
				s.cache.Remove(cacheID(fp, skep.PartKV)) // it has no other
			}
		}
	}
	rec, err := s.record(fp, e)
	if err != nil {
		return bytesOf(uint64(e.Pages)), func() { s.forgetCached(fp, nil) }
	}
	return rec.Bytes(), func() { s.forgetCached(fp, &rec) }
}
