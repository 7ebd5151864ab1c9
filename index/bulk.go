package index

import "github.com/skepkv/skep"

// BulkLoad inserts what an open found, in any order. The clock and the rewrite budget
// stand still, and Last and Touched of the entries are taken over. Blocks that exist
// are left alone; one that is not one deeper than its parent stays hidden. On an error
// some of the entries are in, and the index is sound.
func (x *Index) BulkLoad(entries []Entry) error {
	_, err := x.BulkLoadAgain(entries, nil)
	return err
}

// BulkLoadAgain is BulkLoad; it appends to again the places in entries of blocks that
// existed already.
func (x *Index) BulkLoadAgain(entries []Entry, again []int) ([]int, error) {
	for i := range entries {
		if err := validate("bulk load", &entries[i]); err != nil {
			return again, err
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return again, &skep.Error{Op: "bulk load", Kind: skep.Closed}
	}
	x.reserve(len(entries))
	ids := make([]uint32, len(entries))
	again, err := x.placeAll(entries, ids, again)
	if e := x.linkAll(entries, ids); err == nil {
		err = e
	}
	for _, id := range ids {
		if id != 0 && !x.slots.at(id).has(flagRooted) && x.mayRoot(id) {
			x.root(id)
		}
	}
	return again, err
}

// placeAll gives every new entry a slot, without parents; ids tells which. again grows by
// the others.
func (x *Index) placeAll(entries []Entry, ids []uint32, again []int) ([]int, error) {
	var w warmer
	for i := range entries {
		if i%warmPiece == 0 {
			w.n = 0
			for k := range entries[i:min(i+warmPiece, len(entries))] {
				w.add(&entries[i+k].FP)
			}
			w.read(x)
		}
		f := cut(&entries[i].FP)
		id := x.find(&f)
		if id != 0 && x.slots.at(id).has(flagLive) {
			again = append(again, i)
			continue
		}
		if err := x.room(1); err != nil {
			return again, err
		}
		e := entries[i]
		if e.Last == 0 {
			e.Last = x.Clock()
		}
		id, err := x.place(id, &e)
		if err != nil {
			return again, err
		}
		ids[i] = id
	}
	return again, nil
}

// linkAll links what placeAll placed to its parents. An entry without room for its
// absent parent's stub is taken out again.
func (x *Index) linkAll(entries []Entry, ids []uint32) (err error) {
	var w warmer
	follows := func(i int) bool { return i > 0 && ids[i-1] != 0 && cut(&entries[i].Parent) == cut(&entries[i-1].FP) }
	for i := range entries {
		if i%warmPiece == 0 {
			w.n = 0
			for k := i; k < min(i+warmPiece, len(entries)); k++ {
				if ids[k] != 0 && entries[k].HasParent && !follows(k) {
					w.add(&entries[k].Parent)
				}
			}
			w.read(x)
		}
		if ids[i] == 0 || !entries[i].HasParent {
			continue
		}
		if follows(i) {
			x.link(ids[i], ids[i-1])
			continue
		}
		f := cut(&entries[i].Parent)
		pid := x.find(&f)
		if pid == 0 {
			if full := x.room(1); full != nil {
				err = full
				x.removeLocked(ids[i])
				ids[i] = 0
				continue
			}
			pid = x.stub(&entries[i].Parent)
		}
		x.link(ids[i], pid)
	}
	return err
}

// warmPiece is how many searches are warmed up together: as many cache misses as a
// core can have under way, twice or three times.
const warmPiece = 32

// warmer reads what searches will read, one step of all of them at a time: these
// reads do not depend on each other, so the processor waits for them together, where
// one search after another waits for each.
type warmer struct {
	n   int
	ids [warmPiece]uint32
	fps [warmPiece]fp96
}

func (w *warmer) add(fp *Fingerprint) {
	w.fps[w.n] = cut(fp)
	w.n++
}

func (w *warmer) read(x *Index) {
	for i := range w.n {
		w.ids[i] = *x.table.heads.at(x.table.bucket(&w.fps[i]))
	}
	for range 3 { // few buckets are longer
		for i, id := range w.ids[:w.n] {
			if id == 0 {
				continue
			}
			if s := x.slots.at(id); s.fp != w.fps[i] {
				w.ids[i] = s.next
			}
		}
	}
}
