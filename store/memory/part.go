package memory

import (
	"github.com/zeebo/xxh3"

	"github.com/skepkv/skep/index"
)

// PartID is a part's number in the cache: by name, since who looks there has not read the block's record. Two
// parts of one block may have the same number: they are told apart by whoever puts them.
func PartID(name string) uint16 { return uint16(xxh3.HashString(name)) }

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
