package memory

import (
	"hash/maphash"

	"github.com/skepkv/skep/index"
)

// partSeed is the process's own, so that nobody who names parts can have two of them agree.
var partSeed = maphash.MakeSeed()

// PartID is a part's number in the cache: by name, since who looks there has not read the block's record.
func PartID(name string) uint64 { return maphash.String(partSeed, name) }

// IDOf names a part of a block.
func IDOf(fp index.Fingerprint, part string) ID { return ID{Key: KeyOf(fp), Part: PartID(part)} }

// KeyOf names a block.
func KeyOf(fp index.Fingerprint) (k Key) {
	copy(k[:], fp[:])
	return k
}

// ReleaseAll releases each of bufs.
func ReleaseAll(bufs []*Buffer) {
	for _, b := range bufs {
		b.Release()
	}
}

// Part is a part in the cache, pinned, or nil: it is not there, or there is no cache.
func (c *Cache) Part(fp index.Fingerprint, name string) *Handle {
	if c == nil {
		return nil
	}
	h, ok := c.Get(IDOf(fp, name))
	if !ok {
		return nil
	}
	return h
}
