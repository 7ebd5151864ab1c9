package index

import (
	"fmt"
	"unsafe"
)

// order is an exact order of eviction over all live blocks, for policies with a
// logical cap. REQUIRES of all methods: Index.mu held for writing.
type order interface {
	grow(top uint32) error // makes room for slots up to top
	insert(ID)
	touch(ID)
	remove(ID)
	next() ID                  // the block to evict, 0 for none; it stays until removed
	passOver(ID)               // next may not be evicted now
	resize(id ID, pages int64) // the block grows by pages, or shrinks
	free()
	bytes() int64
	check() error
}

func newOrder(x *Index) (order, error) {
	switch x.cfg.Policy {
	case "lru":
		return &lru{queues: newQueues(x)}, nil
	case "s3fifo":
		return &s3fifo{queues: newQueues(x), ghost: map[fp96]uint32{}}, nil
	}
	return nil, nil
}

// BytesPerBlock is what an index with a policy takes for a block at most, growth included, from some 2 million blocks on:
// Stats.Bytes over Stats.Blocks. The exact orders of lru and s3fifo link all blocks; of s3fifo there can be a ghost for
// each.
func BytesPerBlock(policy string) int64 {
	const slotAndBucket, link = 64, int64(unsafe.Sizeof(node{}))
	switch policy {
	case "lru":
		return slotAndBucket + link
	case "s3fifo":
		return slotAndBucket + link + ghostBytes
	}
	return slotAndBucket
}

// node links a slot into a queue.
type node struct {
	prev, next uint32 // towards the head, towards the tail
	queue      uint8  // 1 + number, 0 for none
	uses       uint8
}

type queue struct {
	head, tail uint32
	blocks     uint32
	pages      int64
}

// queues is two doubly linked lists over the slots.
type queues struct {
	x     *Index
	nodes arena[node]
	q     [2]queue
}

func newQueues(x *Index) queues { return queues{x: x, nodes: arena[node]{heap: x.cfg.heap}} }

func (q *queues) grow(top uint32) error { return q.nodes.grow(top) }
func (q *queues) free()                 { q.nodes.free() }
func (q *queues) bytes() int64          { return q.nodes.bytes(q.x.top + 1) }

func (q *queues) push(i uint8, id ID) {
	l, n := &q.q[i], q.nodes.at(uint32(id))
	n.queue, n.prev, n.next = i+1, 0, l.head
	if l.head != 0 {
		q.nodes.at(l.head).prev = uint32(id)
	} else {
		l.tail = uint32(id)
	}
	l.head = uint32(id)
	l.blocks++
	l.pages += int64(q.x.slots.at(uint32(id)).pages)
}

func (q *queues) pull(id ID) {
	n := q.nodes.at(uint32(id))
	l := &q.q[n.queue-1]
	if n.prev != 0 {
		q.nodes.at(n.prev).next = n.next
	} else {
		l.head = n.next
	}
	if n.next != 0 {
		q.nodes.at(n.next).prev = n.prev
	} else {
		l.tail = n.prev
	}
	l.blocks--
	l.pages -= int64(q.x.slots.at(uint32(id)).pages)
	n.queue = 0
}

func (q *queues) resize(id ID, pages int64) { q.q[q.nodes.at(uint32(id)).queue-1].pages += pages }

// check compares the queues with the slots.
func (q *queues) check() error {
	var blocks, pages uint64
	for i := range q.q {
		l := &q.q[i]
		var n uint32
		var sum int64
		prev := uint32(0)
		for id := l.head; id != 0; id = q.nodes.at(id).next {
			s, d := q.x.slots.at(id), q.nodes.at(id)
			if !s.has(flagLive) || d.queue != uint8(i)+1 || d.prev != prev || n > l.blocks {
				return fmt.Errorf("queue %d: slot %d is out of order", i, id)
			}
			n++
			sum += int64(s.pages)
			prev = id
		}
		if n != l.blocks || sum != l.pages || l.tail != prev {
			return fmt.Errorf("queue %d: %d blocks of %d pages, counted %d of %d", i, l.blocks, l.pages, n, sum)
		}
		blocks += uint64(n)
		pages += uint64(sum)
	}
	if blocks != q.x.counts.blocks || pages != q.x.counts.pages {
		return fmt.Errorf("queues hold %d blocks, the index %d", blocks, q.x.counts.blocks)
	}
	return nil
}

// lru evicts what was used longest ago.
type lru struct{ queues }

func (l *lru) insert(id ID)   { l.push(0, id) }
func (l *lru) remove(id ID)   { l.pull(id) }
func (l *lru) touch(id ID)    { l.pull(id); l.push(0, id) }
func (l *lru) next() ID       { return ID(l.q[0].tail) }
func (l *lru) passOver(id ID) { l.touch(id) }

// s3fifo is S3-FIFO (Yang et al., SOSP '23): new blocks go through a small queue of a
// tenth of the space; those used more than once there go on to the main queue, the
// others out, leaving a ghost, with which they enter the main queue when they return.
type s3fifo struct {
	queues
	ghost map[fp96]uint32 // by fingerprint: its number in ring
	ring  []fp96          // oldest first
	first uint32          // number of ring[0]
	most  int             // ghosts there ever were at once: a map keeps what it grew to
}

// ghostBytes is what a ghost takes on the heap at most: in the map just after it has grown, and in the ring.
const ghostBytes = 80

func (s *s3fifo) bytes() int64 { return s.queues.bytes() + int64(s.most)*ghostBytes }

const (
	small, main = 0, 1
	s3Uses      = 3  // what a block's counter goes up to
	s3Small     = 10 // the small queue's share is 1/s3Small
)

func (s *s3fifo) insert(id ID) {
	s.nodes.at(uint32(id)).uses = 0
	fp := s.x.slots.at(uint32(id)).fp
	if _, ok := s.ghost[fp]; ok {
		delete(s.ghost, fp)
		s.push(main, id)
		return
	}
	s.push(small, id)
}

func (s *s3fifo) touch(id ID) {
	n := s.nodes.at(uint32(id))
	n.uses = min(n.uses+1, s3Uses)
}

func (s *s3fifo) remove(id ID) {
	if s.nodes.at(uint32(id)).queue == small+1 {
		s.remember(s.x.slots.at(uint32(id)).fp)
	}
	s.pull(id)
}

// remember makes a ghost, of which there are no more than blocks in the main queue.
func (s *s3fifo) remember(fp fp96) {
	s.ghost[fp] = s.first + uint32(len(s.ring))
	s.ring = append(s.ring, fp)
	for len(s.ring) > int(s.q[main].blocks)+1 {
		if old := s.ring[0]; s.ghost[old] == s.first {
			delete(s.ghost, old)
		}
		s.ring = s.ring[1:]
		s.first++
	}
	s.most = max(s.most, len(s.ring))
}

func (s *s3fifo) next() ID {
	for {
		total := s.q[small].pages + s.q[main].pages
		if t := s.q[small].tail; t != 0 && (s.q[small].pages*s3Small >= total || s.q[main].tail == 0) {
			n := s.nodes.at(t)
			if n.uses <= 1 {
				return ID(t)
			}
			s.pull(ID(t))
			n.uses = 0
			s.push(main, ID(t))
			continue
		}
		t := s.q[main].tail
		if t == 0 {
			return 0
		}
		n := s.nodes.at(t)
		if n.uses == 0 {
			return ID(t)
		}
		n.uses--
		s.pull(ID(t))
		s.push(main, ID(t))
	}
}

func (s *s3fifo) passOver(id ID) {
	s.pull(id)
	s.push(main, id)
}
