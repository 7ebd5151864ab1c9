package store

import (
	"github.com/skepkv/skep/store/internal/locks"
	"path/filepath"

	"github.com/skepkv/skep/layout"
)

// capacity is how much the drives have room for. It is the only owner of what the index is
// told of that: whatever changes it (a drive added or drained, a file system that fills up or
// is freed, cleaning that finds less fits) goes through reroom and yieldRoom.
type capacity struct {
	mu    locks.Mutex[locks.Capacity]
	pages int64 // room for payload
	most  int64 // what lru and s3fifo may hold of it, as reckoned
	// fits is the part of most that cleaning has found to fit: what is left over in groups
	// cannot be reckoned.
	fits float64
}

// bytes is the room for payload; 0: not known.
func (c *capacity) bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pages * layout.PageSize
}

func (c *capacity) logicalLocked() int64 { return max(1, int64(float64(c.most)*c.fits)) }

// reckon takes the drives as they are now. It returns what the index is to be told, in pages.
func (s *Store) reckon() (pages, logical int64) {
	c := &s.capacity
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pages, c.most = s.room()
	if c.fits == 0 {
		c.fits = 1
	}
	return c.pages, c.logicalLocked()
}

// reroom tells the index how much room there is now.
func (s *Store) reroom() {
	s.reckon()
	s.capacity.tell(s)
}

// tell gives the index what c says.
func (c *capacity) tell(s *Store) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := s.index.SetCapacity(c.pages*layout.SlotsPerPage, c.logicalLocked()*layout.SlotsPerPage); err != nil {
		s.log.Warn("room not reckoned anew", "error", err)
	}
}

// What cleaning has found not to fit, and to fit after all: a part of what is held, and of a group.
const (
	yieldPart  = 512
	regainPart = 8
)

// yieldRoom brings the cap of lru and s3fifo a little below what they hold.
func (s *Store) yieldRoom() {
	live := int64(s.index.Stats().Pages) / layout.SlotsPerPage
	s.refit(func(now int64) int64 { now = min(now, live); return now - now/yieldPart - 1 })
}

// regainRoom lets lru and s3fifo hold more again by a part of a group of so many slots: when
// that was cleaned, next to nothing lived in it.
func (s *Store) regainRoom(slots int) {
	s.refit(func(now int64) int64 { return now + int64(slots)/layout.SlotsPerPage/regainPart })
}

func (s *Store) refit(change func(logical int64) int64) {
	c := &s.capacity
	c.mu.Lock()
	c.fits = float64(min(max(change(c.logicalLocked()), 1), c.most)) / float64(max(c.most, 1))
	c.mu.Unlock()
	c.tell(s)
}

// growth is how many more segments each drive that may grow without a limit would get now,
// if its file system were shared out among those on it and ReserveBytes left free. A drive
// whose file system does not say is not in it.
func (s *Store) growth(list []*drive) map[*drive]int {
	type fileSystem struct {
		free   int64
		drives int64
	}
	found := map[uint64]*fileSystem{}
	on := map[*drive]*fileSystem{}
	for _, d := range list {
		id, free, ok := s.options.fileSystem(filepath.Dir(d.path))
		if !ok {
			continue
		}
		if found[id] == nil {
			found[id] = &fileSystem{free: max(0, free-s.options.ReserveBytes)}
		}
		on[d] = found[id]
		on[d].drives++
	}
	out := map[*drive]int{}
	for d, f := range on {
		out[d] = int(min(f.free/f.drives/s.segBytes, unlimitedSegments))
	}
	return out
}

// uncapped are the drives that grow as their file systems allow.
func (s *Store) uncapped() (list []*drive) {
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	for _, d := range s.allDrives() {
		if d.limit == unlimitedSegments && !d.retired.Load() && d.absent == nil {
			list = append(list, d)
		}
	}
	return list
}

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
