package gpu

import (
	"context"
	"errors"
	"io"
	"runtime"

	"github.com/zeebo/xxh3"

	"github.com/skepkv/skep"
)

// What a prefill copies. Under the tier's lock there is one piece at a time, and its end is waited for there.

var errLentLost = &skep.Error{Op: "prefill", Kind: skep.LeaseExpired, Field: "blocks computed in lent memory", Limit: "a lender that is there until they are stored"}

// load brings layer l of the blocks before block from into their places.
func (p *Prefill) load(l, from int) error {
	left := p.streamed(0, from)
	for len(left) > 0 {
		rest, lost, err := p.loadSome(l, left)
		if err != nil {
			return err
		}
		left = rest
		for _, i := range lost {
			stays, err := p.fetch(i, l)
			if err != nil {
				return err
			}
			if stays {
				left = append(left, i)
			}
		}
	}
	return nil
}

// streamed is which of blocks [from, to) have one layer at a time in own memory.
func (p *Prefill) streamed(from, to int) (list []int) {
	for i := from; i < to; i++ {
		if p.blocks[i].slot >= 0 {
			list = append(list, i)
		}
	}
	return list
}

// some is as many of the blocks, whose places are in one memory, as one piece may have.
func (p *Prefill) someLocked(list []int) (some, rest []int) {
	most := int(max(1, pieceBytes/p.g.LayerBytes()))
	first := p.blocks[list[0]].e.lent
	for _, i := range list {
		if p.blocks[i].e.lent == first && len(some) < most {
			some = append(some, i)
		} else {
			rest = append(rest, i)
		}
	}
	return some, rest
}

// loadSome loads a piece. What is in no GPU memory that can be believed, and not on the host either, is lost.
func (p *Prefill) loadSome(l int, left []int) (rest, lost []int, err error) {
	t := &p.s.tier
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failed != nil {
		return nil, nil, t.failed
	}
	some, rest := p.someLocked(left)
	layer := p.g.LayerBytes()
	from := int64(l) * layer
	if p.blocks[some[0]].e.lent == nowhere {
		for _, i := range some {
			if b := p.blocks[i]; b.e.host == nil {
				lost = append(lost, i)
			} else {
				t.local.stream.CopyIn(t.slotPlace(b.slot), b.e.host[from:from+layer])
			}
		}
		return rest, lost, t.syncLocked(&t.local)
	}
	pool := t.poolOf(p.blocks[some[0]].e)
	if !pool.holds() {
		return rest, p.giveUpLocked(some), nil
	}
	var batch []Transfer
	var looks [][]byte
	for _, i := range some {
		b := p.blocks[i]
		batch = append(batch, Transfer{To: t.slotPlace(b.slot), From: Place{b.e.place.Memory, b.e.place.Offset + from}, N: layer})
	}
	copyAll(pool.stream, batch)
	if !p.unchecked {
		looks = p.look(pool.stream, some)
	}
	if err := t.syncLocked(pool); err != nil {
		return nil, nil, err
	}
	if !pool.holds() {
		return rest, p.giveUpLocked(some), nil
	}
	for k, look := range looks {
		if b := p.blocks[some[k]]; look != nil && xxh3.Hash(look) != b.e.sums[l] {
			lost = append(lost, p.giveUpLocked(some[k:k+1])...)
		}
	}
	return rest, lost, nil
}

// look queues copies to the host of the places of some blocks whose checksums are known.
func (p *Prefill) look(on Stream, some []int) [][]byte {
	looks := make([][]byte, len(some))
	for k, i := range some {
		if b := p.blocks[i]; b.e.sums != nil {
			looks[k] = make([]byte, p.g.LayerBytes())
			on.CopyOut(looks[k], p.s.tier.slotPlace(b.slot))
		}
	}
	return looks
}

func copyAll(on Stream, batch []Transfer) {
	if b, ok := on.(Batcher); ok {
		b.CopyAll(batch)
		return
	}
	for _, c := range batch {
		on.Copy(c.To, c.From, c.N)
	}
}

// giveUpLocked takes their places from blocks that are not to be believed there.
func (p *Prefill) giveUpLocked(some []int) []int {
	t := &p.s.tier
	for _, i := range some {
		t.forgetLocked(p.blocks[i].e)
		t.vacateLocked(p.blocks[i].e)
	}
	return some
}

// fetch reads a block of the history from behind. It stays in host memory until the end where there is room for it;
// else layer l of it is brought to its place, and no more.
func (p *Prefill) fetch(i, l int) (stays bool, err error) {
	if i >= p.history {
		return false, errLentLost
	}
	t, e := &p.s.tier, p.blocks[i].e
	layers := skep.All
	if !t.mayStay(e) {
		layers = skep.Only(l, l+1)
	}
	n, err := p.behind(p.ctx, skep.Range{From: i, To: i + 1}, layers, func(_ int, bytes []byte) error {
		t.mu.Lock()
		defer t.mu.Unlock()
		if stays = t.stayLocked(e, bytes, layers.IsAll()); stays {
			return nil
		}
		layer := p.g.LayerBytes()
		t.local.stream.CopyIn(t.slotPlace(p.blocks[i].slot), bytes[int64(l)*layer:int64(l+1)*layer])
		return t.syncLocked(&t.local)
	})
	if err == nil && n == 0 {
		err = &skep.Error{Op: "prefill", Kind: skep.NotFound, Field: "block of the history", Value: i, Limit: "one that stays behind"}
	}
	return stays, err
}

// defaultReread is Options.RereadBytes unless it is said.
const defaultReread = 256 << 20

// mayStay says whether there is room in host memory for a block that is read again.
func (t *tier) mayStay(e *entry) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return e.host != nil || t.reread+e.size <= t.mostReread
}

// stayLocked keeps a block's bytes in host memory, where they are all of it and there is room. It is there when true.
func (t *tier) stayLocked(e *entry, bytes []byte, whole bool) bool {
	if e.host == nil && whole && t.reread+e.size <= t.mostReread {
		e.host, e.reread = append([]byte(nil), bytes...), true
		t.reread += e.size
	}
	return e.host != nil
}

// leaveLocked gives back the host memory of a block that nobody holds any more.
func (t *tier) leaveLocked(e *entry) {
	if e.reread {
		t.reread -= e.size
	}
	e.host, e.reread = nil, false
}

// store copies layer l of blocks [from, to) from their places to lent memory.
func (p *Prefill) store(l, from, to int) error {
	for left := p.streamed(from, to); len(left) > 0; {
		rest, err := p.storeSome(l, left)
		if err != nil {
			return err
		}
		left = rest
	}
	return nil
}

func (p *Prefill) storeSome(l int, left []int) ([]int, error) {
	t := &p.s.tier
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failed != nil {
		return nil, t.failed
	}
	some, rest := p.someLocked(left)
	layer := p.g.LayerBytes()
	from := int64(l) * layer
	if p.blocks[some[0]].e.lent == nowhere {
		for _, i := range some {
			b := p.blocks[i]
			if b.e.host == nil {
				return nil, errLentLost
			}
			t.local.stream.CopyOut(b.e.host[from:from+layer], t.slotPlace(b.slot))
		}
		return rest, t.syncLocked(&t.local)
	}
	pool := t.poolOf(p.blocks[some[0]].e)
	var batch []Transfer
	for _, i := range some {
		b := p.blocks[i]
		batch = append(batch, Transfer{To: Place{b.e.place.Memory, b.e.place.Offset + from}, From: t.slotPlace(b.slot), N: layer})
	}
	if !pool.holds() {
		return nil, errLentLost
	}
	copyAll(pool.stream, batch)
	if err := t.syncLocked(pool); err != nil {
		return nil, err
	}
	if !pool.holds() {
		return nil, errLentLost
	}
	return rest, nil
}

// bring fills the places of the history's blocks that were in no GPU memory. The number is how many leading
// blocks of the history are there.
func (p *Prefill) bring(ctx context.Context) (int, error) {
	t := &p.s.tier
	era := t.era.Load()
	for at := 0; at < p.history; at++ {
		if p.blocks[at].e.sum != 0 {
			continue
		}
		to := at + 1
		for to < p.history && p.blocks[to].e.sum == 0 && int64(to-at)*p.g.PartBytes() < someBytes {
			to++
		}
		n, err := p.behind(ctx, skep.Range{From: at, To: to}, skep.All, func(i int, bytes []byte) error { return t.fill(era, p.blocks[i].e, bytes) })
		if err != nil || n < to-at {
			return at + n, err
		}
		at = to - 1
	}
	return p.history, nil
}

// fill copies a block's bytes to its place, and names it unless another has the name.
func (t *tier) fill(era uint64, e *entry, bytes []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failed != nil {
		return t.failed
	}
	t.sumLocked(e, bytes)
	if e.lent == nowhere { // its place went back meanwhile
		t.stayLocked(e, bytes, true)
		return nil
	}
	p := t.poolOf(e)
	p.stream.CopyIn(e.place, bytes)
	if err := t.syncLocked(p); err != nil {
		return err
	}
	t.nameLocked(era, e)
	return nil
}

// sumLocked notes a block's checksums: of all of it and, where layers are streamed, of each.
func (t *tier) sumLocked(e *entry, bytes []byte) {
	e.sum = max(xxh3.Hash(bytes), 1)
	if t.layers > 0 && len(bytes)%t.layers == 0 {
		n := len(bytes) / t.layers
		e.sums = make([]uint64, t.layers)
		for l := range e.sums {
			e.sums[l] = xxh3.Hash(bytes[l*n : (l+1)*n])
		}
	}
}

// nameLocked has a block that is in GPU memory found there.
func (t *tier) nameLocked(era uint64, e *entry) {
	if t.sinceLocked(era, e.id) && t.entries.of(e.id) == nil && e.lent != nowhere {
		t.entries.set(e)
		e.used = t.order[e.row()].PushFront(e)
	}
}

// put stores blocks [at, to), which were computed, behind.
func (p *Prefill) put(ctx context.Context, at, to int) ([]skep.PutResult, error) {
	t := &p.s.tier
	era := t.era.Load()
	r := &skep.PutRequest{Scope: p.r.Scope, Depth: at}
	if at > 0 {
		r.Parent, r.Ancestors = &p.r.Keys[at-1], p.r.Keys[:at-1]
	}
	for i := at; i < to; i++ {
		bytes, err := t.read(p.blocks[i].e)
		if err != nil {
			return nil, err
		}
		r.Blocks = append(r.Blocks, skep.Block{Key: p.r.Keys[i], Parts: []skep.Part{{Bytes: bytes}}})
	}
	res, err := p.s.Store.Put(ctx, r)
	t.mu.Lock()
	defer t.mu.Unlock()
	mine := make([]bool, len(r.Blocks)) // stored, and not deleted meanwhile
	for i := range r.Blocks {
		e := p.blocks[at+i].e
		if stored := err == nil && (res[i].Outcome == skep.Committed || res[i].Outcome == skep.Accepted); stored {
			e.fresh, mine[i] = false, t.sinceLocked(era, e.id)
		}
	}
	for i := range r.Blocks {
		if err != nil || res[i].Outcome != skep.Exists {
			t.goneLocked(p.blocks[at+i].e.id) // other bytes may have had this name before
		}
	}
	for i := range r.Blocks {
		if mine[i] {
			t.nameLocked(t.era.Load(), p.blocks[at+i].e)
		}
	}
	return res, err
}

// read copies a block that was computed to the host.
func (t *tier) read(e *entry) ([]byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	bytes := e.host
	switch {
	case t.failed != nil:
		return nil, t.failed
	case e.lent == nowhere && bytes == nil:
		return nil, errLentLost
	case e.lent != nowhere:
		p := t.poolOf(e)
		if !p.holds() {
			return nil, errLentLost
		}
		bytes = make([]byte, e.size)
		p.stream.CopyOut(bytes, e.place)
		if err := t.syncLocked(p); err != nil {
			return nil, err
		}
		if !p.holds() {
			return nil, errLentLost
		}
	}
	t.sumLocked(e, bytes)
	return bytes, nil
}

// behind reads layers (zero: all) of blocks of the prompt from the Store behind and says how many blocks, in order, came.
func (p *Prefill) behind(ctx context.Context, r skep.Range, layers skep.Subset, each func(block int, bytes []byte) error) (n int, err error) {
	size := p.g.PartBytes()
	step := (size + pinnedPage - 1) &^ (pinnedPage - 1)
	land := p.s.tier.pinned.take(int64(r.Len()) * step)
	mem := []byte(nil)
	if land != nil {
		mem = land.bytes
	} else {
		mem = make([]byte, int64(r.Len())*step)
	}
	ses, err := p.s.Store.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: p.r.Scope, Keys: p.r.Keys[:r.To], Blocks: r.Subset(), Layers: layers, Dest: skep.Destination{Memory: mem, Stride: step}}}})
	if err != nil {
		if !errors.Is(err, skep.NotReleased) { // else something may write there yet: it is never lent again
			land.release()
		}
		return 0, err
	}
	arrived := make([]bool, r.Len())
	want := size
	if some, ok := layers.Bounds(); ok {
		want = int64(some.Len()) * p.g.LayerBytes()
	}
	err = receive(ctx, ses, want, func(c *skep.Chunk) error {
		at := int64(c.Block-r.From) * step
		err := each(c.Block, mem[at:at+size])
		arrived[c.Block-r.From] = err == nil
		return err
	})
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.s.tier.timeout)
	defer cancel()
	closed := ses.Close(end)
	if errors.Is(closed, skep.NotReleased) {
		p.s.tier.unreleased.again(ses, p.s.tier.timeout, func() { runtime.KeepAlive(mem); land.release() })
	} else {
		land.release()
		closed = nil
	}
	runtime.KeepAlive(mem)
	for n < len(arrived) && arrived[n] {
		n++
	}
	return n, errors.Join(err, closed)
}

// receive hands whole blocks of a session on as they land.
func receive(ctx context.Context, ses skep.Session, size int64, each func(*skep.Chunk) error) (first error) {
	for into := make([]skep.Chunk, 16); ; {
		n, err := ses.Next(ctx, into)
		for i := range into[:n] {
			if c := &into[i]; first == nil && c.Err == nil && c.Bytes == size {
				first = each(c)
			}
			into[i].Release()
		}
		if first != nil || errors.Is(err, io.EOF) {
			return first
		}
		if err != nil {
			return err
		}
	}
}
