package errand

import (
	"slices"
	"sync"

	"github.com/skepkv/skep"
)

// mostPooled is how many keys memory is kept for.
const mostPooled = 1 << 14

var pool = sync.Pool{New: func() any { return new([]skep.Key) }}

// Copy puts copies in place of runs of keys, which are their caller's, in memory that is lent until GiveBack.
func Copy(runs [][]skep.Key) (lent *[]skep.Key) {
	total := 0
	for _, keys := range runs {
		total += len(keys)
	}
	lent = pool.Get().(*[]skep.Key)
	all := slices.Grow((*lent)[:0], total)
	for i, keys := range runs {
		at := len(all)
		all = append(all, keys...)
		runs[i] = all[at:len(all):len(all)]
	}
	*lent = all
	return lent
}

// GiveBack ends the loan.
func GiveBack(lent *[]skep.Key) {
	if cap(*lent) <= mostPooled {
		pool.Put(lent)
	}
}
