package sparse

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index/coact"
	"github.com/skepkv/skep/layout"
)

// token is one appended token, in a block of its own until all its entries are on their
// drives.
type token struct {
	left int // layers that still wait
}

// joined is an entry that knows its cluster and waits for a block's worth of neighbours.
type joined struct {
	entry   uint32
	cluster int
	device  int // as dealt
}

// Append implements skep.SparseContext.
func (k *sparseContext) Append(ctx context.Context, layers [][]byte) (uint32, error) {
	const op = "append"
	if len(layers) != len(k.layers) {
		return 0, skep.Invalidf(op, "layers", len(layers), len(k.layers))
	}
	for _, b := range layers {
		if int64(len(b)) != k.entry {
			return 0, skep.Invalidf(op, "entry in bytes", len(b), k.entry)
		}
	}
	if err := k.alive(ctx); err != nil {
		return 0, err
	}
	// Tokens get their numbers one at a time: no number is left out after a crash.
	if err := holdOne(ctx, op, k.appending); err != nil {
		return 0, err
	}
	defer func() { <-k.appending }()
	k.mu.Lock()
	e, closed := k.next, k.closed
	k.mu.Unlock()
	if closed {
		return 0, &skep.Error{Op: op, Kind: skep.Closed}
	}
	if e >= coact.MaxEntries {
		return 0, skep.Invalidf(op, "entries", e, fmt.Sprintf("below %d", coact.MaxEntries))
	}
	if err := k.roomInMemory(ctx, op); err != nil {
		return 0, err
	}
	if err := k.clearAhead(ctx, e); err != nil {
		return 0, err
	}
	body := binary.LittleEndian.AppendUint32(nil, e)
	for _, b := range layers {
		body = append(body, b...)
	}
	if err := k.putMeta(ctx, k.key("token", uint64(e)), body); err != nil {
		return 0, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.next++
	return e, k.arrive(e, layers)
}

// maxUnjoined is how many appended entries a layer keeps that join no cluster, because no
// arithmetic is known of its element type: they stay in memory for as long as it is open. Those of other types are placed
// early beyond it.
const maxUnjoined = 4096

// roomInMemory makes room for an entry in every layer: where no steps are observed, the oldest are placed by their keys.
// That begins beyond what the window has where each is followed by a step, and what fills no block of any drive yet. It
// refuses one that would stay in memory beyond maxUnjoined. REQUIRES: k.appending.
func (k *sparseContext) roomInMemory(ctx context.Context, op string) error {
	for _, y := range k.layers {
		y.mu.Lock()
		n, joins, blocks := len(y.mu.window), y.mu.joiner != nil, len(y.mu.arrangement.at)*slotsPerBlock
		y.mu.Unlock()
		if !joins && n >= maxUnjoined {
			return skep.Invalidf(op, "appended entries in memory", n, fmt.Sprintf("below %d, as entries of %v join no clusters", maxUnjoined, k.head.Shape.Element))
		}
		if joins && n >= max(maxUnjoined, k.s.o.Window+blocks) {
			if err := y.place(ctx, blocks); err != nil { // some drive has a block's worth then
				return err
			}
		}
	}
	return nil
}

// clearChunk is how many numbers one clearing covers.
const clearChunk = 256

// clearAhead deletes what is stored as the token after e and a chunk beyond, unless that was
// done. The store may evict a token and keep those after it: numbers begin anew where it was,
// and an open takes tokens up to the first that is not there, so a token may be stored only
// once the one after it is gone, or it would pass for one of the new text. REQUIRES:
// k.appending, or that nobody else has the context.
func (k *sparseContext) clearAhead(ctx context.Context, e uint32) error {
	if e+1 < k.cleared {
		return nil
	}
	return k.clearFrom(ctx, e+1)
}

// clearFrom deletes a chunk of tokens that are none of the context's. REQUIRES: as clearAhead.
func (k *sparseContext) clearFrom(ctx context.Context, first uint32) error {
	keys := make([]skep.Key, clearChunk)
	for i := range keys {
		keys[i] = k.key("token", uint64(first)+uint64(i))
	}
	if _, err := k.s.st.Delete(ctx, k.meta, keys); err != nil {
		return err
	}
	k.cleared = first + clearChunk
	return nil
}

// arrive puts a stored token into the window. REQUIRES: k.mu.
func (k *sparseContext) arrive(e uint32, layers [][]byte) error {
	k.tokens[e] = &token{left: len(k.layers)}
	for n, y := range k.layers {
		rec := slices.Clone(layers[n])
		y.mu.Lock()
		y.mu.window[e] = rec
		var err error
		if y.mu.joiner != nil {
			err = y.mu.joiner.Arrive(e, k.keysOf(func(uint32) []byte { return rec }, 1))
		}
		y.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// loadTokens reads appended tokens at an open: the numbers go on from where arrangements
// end, without a gap.
func (k *sparseContext) loadTokens(ctx context.Context) error {
	placed := k.head.Entries
	for _, y := range k.layers {
		if a := y.mu.arrangement; a != nil { // nil in one that is dropped, damaged
			placed = max(placed, a.entries)
		}
	}
	for e := uint32(k.head.Entries); ; e++ {
		body, err := k.getMeta(ctx, k.key("token", uint64(e)))
		if err != nil {
			return err
		}
		if body == nil {
			if int(e) < placed {
				continue // on its drives already, in every layer
			}
			k.next = e
			return nil
		}
		if int64(len(body)) != 4+int64(len(k.layers))*k.entry || binary.LittleEndian.Uint32(body) != e {
			return &skep.Error{Op: "open context", Kind: skep.Damaged, Field: "token", Value: e}
		}
		t := &token{}
		for n, y := range k.layers {
			if a := y.mu.arrangement; a != nil && int(e) < a.entries && len(a.placement.Spots(e)) > 0 {
				continue
			}
			t.left++
			rec := slices.Clone(body[4+int64(n)*k.entry:][:k.entry])
			y.mu.window[e] = rec
			if y.mu.joiner != nil {
				if err := y.mu.joiner.Arrive(e, k.keysOf(func(uint32) []byte { return rec }, 1)); err != nil {
					return err
				}
			}
		}
		k.tokens[e] = t
	}
}

// place gives entries whose time in the window is over, and this many of the oldest others, a cluster and a drive, and
// writes those of a drive that fill a block. None has a place early that is not about to be written.
func (y *layer) place(ctx context.Context, early int) error {
	if early > 0 {
		if err := y.hold(ctx, "append"); err != nil {
			return err
		}
		defer y.free()
	}
	y.mu.Lock()
	if y.mu.joiner == nil {
		y.mu.Unlock()
		return nil
	}
	a := y.mu.arrangement
	ready := y.mu.joiner.Ready()
	if early > 0 {
		ready = y.mu.joiner.Waiting()
		slices.Sort(ready)
		ready = ready[:min(early, len(ready))]
	}
	slices.Sort(ready)
	for _, e := range ready {
		c, ok := y.mu.joiner.Place(e)
		if !ok || c >= len(a.clusters) {
			continue
		}
		size := len(a.clusters[c])
		for _, j := range y.mu.joined {
			if j.cluster == c {
				size++
			}
		}
		// The drive after the one the cluster's last entry is on: (id + |C|) mod n.
		id := 0
		if spots := a.placement.Spots(a.clusters[c][0]); len(spots) > 0 {
			id = int(spots[0].Device)
		}
		y.mu.joined = append(y.mu.joined, joined{e, c, (id + size) % len(a.at)})
	}
	waiting := make([]int, len(a.at))
	full := false
	for _, j := range y.mu.joined {
		if waiting[j.device]++; waiting[j.device] >= slotsPerBlock {
			full = true
		}
	}
	y.mu.Unlock()
	if !full {
		return nil
	}
	if early == 0 { // a step waits for no Recluster: the entries stay in memory, and the next step tries again
		select {
		case y.moving <- struct{}{}:
			defer y.free()
		default:
			return nil
		}
	}
	return y.overflow(ctx, false)
}

// settle waits for prefetches, and for a recluster, which gives way, or overflow write under way.
func (y *layer) settle() {
	y.k.background.Wait()
	y.moving <- struct{}{}
	y.free()
}

// overflow writes waiting entries to blocks at the end of their drives' records and lets
// the arrangement grow by them; all of them, or those of drives with a block's worth. REQUIRES: y.moving.
func (y *layer) overflow(ctx context.Context, all bool) error {
	k := y.k
	if err := k.ended("append"); err != nil {
		return err
	}
	y.mu.Lock()
	a := y.mu.arrangement
	grown := &arrangement{gen: a.gen, entries: a.entries, tau: a.tau, keys: a.keys, placedAs: a.placedAs, readers: a.readers,
		clusters: slices.Clone(a.clusters), at: make([][]uint32, len(a.at))}
	for d := range a.at {
		grown.at[d] = slices.Clone(a.at[d])
	}
	recs := map[uint32][]byte{}
	var blocks []skep.Block
	var written []uint32
	for d := range grown.at {
		var mine []joined
		for _, j := range y.mu.joined {
			if j.device == d {
				mine = append(mine, j)
			}
		}
		for len(mine) >= slotsPerBlock || all && len(mine) > 0 {
			part := mine[:min(len(mine), slotsPerBlock)]
			mine = mine[len(part):]
			// A cluster's entries side by side.
			slices.SortStableFunc(part, func(x, z joined) int { return x.cluster - z.cluster })
			for len(grown.at[d])%slotsPerBlock != 0 {
				grown.at[d] = append(grown.at[d], layout.NoEntry)
			}
			block := len(grown.at[d]) / slotsPerBlock
			var slots []uint32
			for _, j := range part {
				slots = append(slots, j.entry)
				recs[j.entry] = y.mu.window[j.entry]
				grown.clusters[j.cluster] = append(slices.Clone(grown.clusters[j.cluster]), j.entry)
				grown.entries = max(grown.entries, int(j.entry)+1)
				written = append(written, j.entry)
			}
			grown.at[d] = append(grown.at[d], slots...)
			blocks = append(blocks, skep.Block{Key: k.recordKey(y.n, a.gen, d, block),
				Parts: []skep.Part{{Bytes: k.blockOf(slots, func(e uint32) []byte { return recs[e] })}}})
		}
	}
	y.mu.Unlock()
	if len(blocks) == 0 {
		return nil
	}
	if err := k.put(ctx, k.records, blocks); err != nil {
		return err
	}
	if err := y.put(ctx, grown); err != nil {
		return err
	}
	if err := grown.settle(k, y.n); err != nil {
		return err
	}
	y.mu.Lock()
	y.mu.arrangement = grown
	for _, e := range written {
		delete(y.mu.window, e)
	}
	y.mu.joined = slices.DeleteFunc(y.mu.joined, func(j joined) bool { return slices.Contains(written, j.entry) })
	err := y.followLocked()
	y.mu.Unlock()
	if err != nil {
		return err
	}
	return k.placed(ctx, written)
}

// placed counts layers that have entries on their drives, and deletes the blocks of tokens
// that have all there, those too that could not be deleted before.
func (k *sparseContext) placed(ctx context.Context, entries []uint32) error {
	var done []uint32
	var keys []skep.Key
	k.mu.Lock()
	for _, e := range entries {
		if t := k.tokens[e]; t != nil {
			t.left--
		}
	}
	for e, t := range k.tokens {
		if t.left == 0 {
			done, keys = append(done, e), append(keys, k.key("token", uint64(e)))
		}
	}
	k.mu.Unlock()
	if len(done) == 0 {
		return nil
	}
	if _, err := k.s.st.Delete(ctx, k.meta, keys); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, e := range done {
		delete(k.tokens, e)
	}
	return nil
}
