package store

import "path/filepath"

// reckonUncapped is the size at which a device of a new store without a cap is reckoned when
// its segments are chosen: what the file systems have, so that there are enough groups.
func (o *Options) reckonUncapped(paths []string) int64 {
	sharing, has := map[uint64]int64{}, map[uint64]int64{}
	for _, p := range paths {
		if id, free, ok := o.fileSystem(filepath.Dir(p)); ok {
			sharing[id]++
			has[id] = free
		}
	}
	each := int64(uncappedReckon)
	for id, free := range has {
		each = min(each, (free-o.ReserveBytes)/sharing[id])
	}
	return max(each, leastReckon)
}

const (
	// uncappedReckon is the largest device size from which a store without a cap derives its
	// segments.
	uncappedReckon = 4 << 30
	// leastReckon is the smallest: its file system may have more room one day.
	leastReckon = 16 << 20
)
