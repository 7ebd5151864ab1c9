package bucket

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
)

// found says which blocks lookups have found lately: in this hour or the one before. Of a hundred that none has, one
// may be said to be.
type found struct {
	now, before atomic.Pointer[foundBits]
}

const (
	foundSize  = 1 << 22 // bits: half a mebibyte
	foundFor   = time.Hour
	foundWords = foundSize / 64
)

type foundBits struct {
	since time.Time
	words [foundWords]atomic.Uint64
}

func newFound() *found {
	f := &found{}
	f.now.Store(&foundBits{since: time.Now()})
	f.before.Store(&foundBits{})
	return f
}

func bitOf(k *skep.Key) (word int, bit uint64) {
	h := binary.LittleEndian.Uint64(k[8:])
	return int(h >> 6 % foundWords), 1 << (h & 63)
}

// note has these be found.
func (f *found) note(keys []skep.Key) {
	b := f.now.Load()
	for i := range keys {
		word, bit := bitOf(&keys[i])
		if w := &b.words[word]; w.Load()&bit == 0 {
			w.Or(bit)
		}
	}
}

// was says whether one has been found lately.
func (f *found) was(k *skep.Key) bool {
	word, bit := bitOf(k)
	return (f.now.Load().words[word].Load()|f.before.Load().words[word].Load())&bit != 0
}

// turn begins another hour when one is over.
func (f *found) turn(now time.Time) {
	if b := f.now.Load(); now.Sub(b.since) >= foundFor {
		f.before.Store(b)
		f.now.Store(&foundBits{since: now})
	}
}
