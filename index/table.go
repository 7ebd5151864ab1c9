package index

// table is linear hashing over chunked bucket heads: it grows by splitting one bucket
// at a time, so no insert pays for a rehash and no memory is held twice.
type table struct {
	heads arena[uint32]
	n     uint32 // buckets
	mask  uint32 // of the buckets before this round of splits; n is in (mask, 2·mask+1]
	used  uint32 // slots hashed
}

const (
	firstBuckets = 64
	// A bucket holds 7/4 slots on average: 2.3 bytes of heads a block, 1.9 slots read
	// by a probe that finds its block.
	loadNum, loadDen = 7, 4
)

func (t *table) init() error {
	t.n, t.mask = firstBuckets, firstBuckets-1
	return t.heads.grow(t.n - 1)
}

func (t *table) bucket(f *fp96) uint32 {
	b := f[0] & (t.mask<<1 | 1)
	if b >= t.n {
		b = f[0] & t.mask
	}
	return b
}

// find is the slot of f, live or stub, or 0.
func (x *Index) find(f *fp96) uint32 {
	id := *x.table.heads.at(x.table.bucket(f))
	for id != 0 {
		s := x.slots.at(id)
		if s.fp == *f {
			return id
		}
		id = s.next
	}
	return 0
}

// hash puts a slot whose fp is set into its bucket, and splits a bucket when the
// table is full for its size. Without memory for another chunk the buckets merely
// get longer.
func (x *Index) hash(id uint32) {
	s := x.slots.at(id)
	h := x.table.heads.at(x.table.bucket(&s.fp))
	s.next = *h
	*h = id
	x.table.used++
	for uint64(x.table.used)*loadDen > uint64(x.table.n)*loadNum {
		if !x.split() {
			return
		}
	}
}

func (x *Index) split() bool {
	t := &x.table
	if t.n == 1<<31 || t.heads.grow(t.n) != nil {
		return false
	}
	from, to := t.n&t.mask, t.n
	t.n++
	id := *t.heads.at(from)
	var stay, move uint32
	for id != 0 {
		s := x.slots.at(id)
		next := s.next
		if s.fp[0]&(t.mask<<1|1) == to {
			s.next, move = move, id
		} else {
			s.next, stay = stay, id
		}
		id = next
	}
	*t.heads.at(from) = stay
	*t.heads.at(to) = move
	if t.n-1 == t.mask<<1|1 {
		t.mask = t.mask<<1 | 1
	}
	return true
}

func (x *Index) unhash(id uint32) {
	s := x.slots.at(id)
	p := x.table.heads.at(x.table.bucket(&s.fp))
	for *p != id {
		p = &x.slots.at(*p).next
	}
	*p = s.next
	x.table.used--
}

// reserve splits ahead for n more slots, while the buckets are short.
func (x *Index) reserve(n int) {
	want := min((uint64(x.table.used)+uint64(n))*loadDen/loadNum, 1<<31)
	for uint64(x.table.n) < want && !x.closed && x.split() {
	}
}
