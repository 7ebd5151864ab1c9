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
	id := memory.IDOf(fp, part)
	v, err := rs.Cache.Put(memory.Item{ID: id, Bufs: bufs, Length: size})
	if err != nil {
		memory.ReleaseAll(bufs)
		return
	}
	// The block may have been deleted or replaced since it was found. Whoever does that
	// changes the index first and then forgets what is cached.
	if e, ok := rs.Index.Resolve(fp); !ok || e.Location != loc {
		rs.Cache.Discard(id, v)
	}
}
