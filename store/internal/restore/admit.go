package restore

import (
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/memory"
)

// admit offers a part that was just read to the DRAM tier: the buffers the drive
// filled become the cache's, without a copy, and the reader shares them.
func (rs *Restorer) admit(fp index.Fingerprint, loc uint64, part string, size int64, bufs []*memory.Buffer) {
	if rs.Cache == nil {
		return
	}
	for i, b := range bufs {
		if b.Retain() != nil {
			memory.ReleaseAll(bufs[:i])
			return
		}
	}
	// The block may have been deleted or replaced since it was found. Whoever does that changes the index first and then
	// forgets what is cached: under the cache's lock either this sees the one, or what it puts is gone by the other.
	current := func() bool {
		e, ok := rs.Index.Resolve(fp)
		return ok && e.Location == loc
	}
	item := memory.Item{ID: memory.IDOf(fp, part), Bufs: bufs, Length: size, Where: loc, Current: current}
	if _, err := rs.Cache.Put(item); err != nil {
		memory.ReleaseAll(bufs)
	}
}
